"""Stand-in for a language-model server: the metrics of vLLM, SGLang, TGI and llama.cpp.

The texts have the names, types and labels that the servers write (vLLM 0.4.0, 0.6.6 and 0.28,
also under Ray; SGLang 0.5.18; TGI 3.3; llama.cpp b10586 and b7100). As a program it works off a
request every tenth of a second:

    python -m tests.support.model_server PORT [vllm|sglang|tgi|llama.cpp] SECONDS
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Work = tuple[float, float, float, float]
"""Prompt tokens, generated tokens, requests so far, and requests in the server."""


def vllm(work: Work, *, engines: int = 1) -> str:
    """vLLM 0.28: engines of data parallelism have series of their own."""
    prompt, generated, requests, running = work
    lines = []
    for kind, name, value in (
        ("gauge", "vllm:num_requests_running", running),
        ("gauge", "vllm:num_requests_waiting", 0),
        ("counter", "vllm:prompt_tokens_total", prompt),
        ("gauge", "vllm:prompt_tokens_created", 1.79e9),
        ("counter", "vllm:prompt_tokens_cached_total", prompt / 2),
        ("counter", "vllm:generation_tokens_total", generated),
        ("histogram", "vllm:iteration_tokens_total_sum", prompt + generated),
    ):
        lines += [f"# HELP {name} Text.", f"# TYPE {name} {kind}"]
        for engine in range(engines):
            labels = f'engine="{engine}",model_name="org/Model {{7B}}"'
            lines.append(f"{name}{{{labels}}} {value / engines}")
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, share in (("stop", 0.75), ("length", 0.25), ("abort", 0.0)):
        labels = f'engine="0",finished_reason="{reason}",model_name="org/Model {{7B}}"'
        lines.append(f"vllm:request_success_total{{{labels}}} {requests * share}")
    return "\n".join(lines) + "\n"


def vllm_0_4(work: Work) -> str:
    """vLLM 0.4.0, which does not count requests."""
    prompt, generated, requests, running = work
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{model_name="m"}} {running}\n'
        "# TYPE vllm:prompt_tokens_total counter\n"
        f'vllm:prompt_tokens_total{{model_name="m"}} {prompt}\n'
        "# TYPE vllm:generation_tokens_total counter\n"
        f'vllm:generation_tokens_total{{model_name="m"}} {generated}\n'
        "# TYPE vllm:e2e_request_latency_seconds histogram\n"
        f'vllm:e2e_request_latency_seconds_bucket{{le="+Inf",model_name="m"}} {requests}\n'
        f'vllm:e2e_request_latency_seconds_count{{model_name="m"}} {requests}\n'
        "# TYPE vllm:avg_generation_throughput_toks_per_s gauge\n"
        'vllm:avg_generation_throughput_toks_per_s{model_name="m"} 31.5\n'
    )


def ray_vllm(work: Work) -> str:
    """vLLM under Ray, which writes other prefixes and a replica."""
    return vllm(work).replace("vllm:", "ray_vllm_").replace("{engine", '{ReplicaId="a",engine')


def sglang(work: Work) -> str:
    """SGLang 0.5.18: series of several processes begin with their first request."""
    prompt, generated, requests, running = work
    labels = 'is_streaming="true",model_name="m"'
    text = (
        "# TYPE sglang:num_running_reqs gauge\n"
        f'sglang:num_running_reqs{{model_name="m",tp_rank="0"}} {running}\n'
        "# TYPE sglang:num_queue_reqs gauge\n"
        'sglang:num_queue_reqs{model_name="m",tp_rank="0"} 0.0\n'
    )
    if requests:
        text += (
            "# TYPE sglang:prompt_tokens_total counter\n"
            f"sglang:prompt_tokens_total{{{labels}}} {prompt:e}\n"
            "# TYPE sglang:generation_tokens_total counter\n"
            f"sglang:generation_tokens_total{{{labels}}} {generated:e}\n"
            "# TYPE sglang:num_requests_total counter\n"
            f"sglang:num_requests_total{{{labels}}} {requests}\n"
        )
    return text


def tgi(work: Work) -> str:
    """TGI 3.3: histograms, which begin with their first request; counters without `_total`."""
    prompt, generated, requests, running = work
    text = f"# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size {running}\n\n"
    if requests:
        text += (
            "# TYPE tgi_request_success counter\n"
            f"tgi_request_success {requests}\n\n"
            "# TYPE tgi_request_count counter\n"
            f"tgi_request_count {requests + 1}\n\n"
            "# TYPE tgi_request_input_length histogram\n"
            f'tgi_request_input_length_bucket{{le="+Inf"}} {requests}\n'
            f"tgi_request_input_length_sum {prompt}\n"
            f"tgi_request_input_length_count {requests}\n\n"
            "# TYPE tgi_request_generated_tokens histogram\n"
            f"tgi_request_generated_tokens_sum {generated}\n"
            f"tgi_request_generated_tokens_count {requests}\n"
        )
    return text


def llama_cpp(work: Work) -> str:
    """llama.cpp b10586, with the six digits of its numbers."""
    prompt, generated, _, running = work
    return (
        "# HELP llamacpp:prompt_tokens_total Text\n"
        "# TYPE llamacpp:prompt_tokens_total counter\n"
        f"llamacpp:prompt_tokens_total {prompt:g}\n"
        "# TYPE llamacpp:tokens_predicted_total counter\n"
        f"llamacpp:tokens_predicted_total {generated:g}\n"
        "# TYPE llamacpp:requests_processing gauge\n"
        f"llamacpp:requests_processing {running:g}\n"
    )


def quoted_llama_cpp(work: Work) -> str:
    """llama.cpp b7100, which answered with its text as a JSON string."""
    return json.dumps(llama_cpp(work))


KINDS: dict[str, Callable[[Work], str]] = {
    "vllm": vllm,
    "vllm 0.4": vllm_0_4,
    "vllm on Ray": ray_vllm,
    "sglang": sglang,
    "tgi": tgi,
    "llama.cpp": llama_cpp,
    "quoted llama.cpp": quoted_llama_cpp,
}


@contextmanager
def answering(text: Callable[[], str | bytes], status: int = 200, **headers: str) -> Iterator[str]:
    """Serve the result of `text`; yield the address of the metrics. Other paths give 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = text() if found else "not here"
            data = body if isinstance(body, bytes) else body.encode()
            self.send_response(status if found else 404)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            try:
                self.wfile.write(data)
            except OSError:  # the reader has closed the connection
                return

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


@contextmanager
def silent(send: bytes = b"") -> Iterator[str]:
    """Run a server that accepts connections, sends `send` and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                    connection.sendall(send)
                except OSError:
                    return
                held.append(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        server.shutdown(socket.SHUT_RDWR)  # ends the thread's accept
        for connection in held:
            connection.close()


def main() -> None:
    """Serve and work for some seconds."""
    port, kind, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    begin_s = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            done = int((time.monotonic() - begin_s) / 0.1)
            data = KINDS[kind]((40.0 * done, 20.0 * done, float(done), 1.0)).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    ThreadingHTTPServer.allow_reuse_address = True
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        time.sleep(seconds)


if __name__ == "__main__":
    main()
