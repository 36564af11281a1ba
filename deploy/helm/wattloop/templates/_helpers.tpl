{{- define "wattloop.labels" -}}
app.kubernetes.io/name: wattloop
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "wattloop.name" -}}
{{- printf "%s-%s" .root.Release.Name .part | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "wattloop.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end }}

{{- /* Nothing but reading: no capability, no new privileges, no writing to the image. */}}
{{- define "wattloop.restricted" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
