"""Facts about machines: where their files are, and what their parts draw.

- `host`         roots of /sys and /proc (containers and tests name others), identity of the machine
- `dimms`        installed memory modules, from SMBIOS, dmidecode or the user
- `dmidecode`    runs that program, on request only
- `dram_power`   the thesis's model of memory power
- `hwmon`        sensor chips
- `memory`       memory in use
- `number_file`  a kernel file that holds one number, kept open
- `perf_event`   one kernel counter through the perf_event_open system call
- `powercap`     energy zones of the powercap tree and their power limits
- `carbon`       annual carbon intensities of electricity by country, with source and year
- `chassis`      power supplies, fans, board: what the rest of a node draws
- `cpus`         processors by name, with their TDP; `cpuinfo` finds those of this machine
- `gpus`         GPUs by name: peaks, memory, clocks, power limits, links, with their sources;
  `gpu_files` reads them
- `lined_yaml`   YAML with the line of every field, for messages; `yaml_faults` words them
- `cpu_power`    power of a CPU package from how busy its cores are
"""
