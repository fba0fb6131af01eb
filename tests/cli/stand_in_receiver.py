"""A receiver of a few lines, started as `python -m receiver` from the folder that holds a copy of it.

Environment: TAMPER=quantity adds one to the quantity it tells, TAMPER=lose forgets the last message, TAMPER=mute
says nothing at the start, TAMPER=refuse answers every job with 422.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TAMPER = os.environ.get("TAMPER", "")
LEDGER: dict[str, int] = {}
COUNTS = {"duplicates": 0, "conflicts": 0, "requests": 0}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            COUNTS["requests"] += 1
            known = job["id"] in LEDGER
            COUNTS["duplicates"] += known
            if TAMPER != "refuse":
                LEDGER[job["id"]] = job["qty"]
        if TAMPER == "refuse":
            self.answer(422, {"type": "about:blank", "detail": "\x1b[31mrefused\u202e"})
        else:
            result = "duplicate" if known else "accepted"
            self.answer(200, {"id": job["id"], "qty": job["qty"], "result": result})

    def do_GET(self) -> None:
        with LOCK:
            messages, quantity = len(LEDGER), sum(LEDGER.values())
        quantity += TAMPER == "quantity"
        messages -= TAMPER == "lose"
        self.answer(200, {"messages": messages, "quantity": quantity, **COUNTS})

    def answer(self, status: int, value: dict[str, object]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_arguments: object) -> None:
        """Say nothing: a killed dispatcher breaks its connections."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = Server(("127.0.0.1", 0), Handler)
    if TAMPER == "mute":
        sys.exit("no words")
    ready = {"event": "ready", "url": f"http://127.0.0.1:{server.server_port}/inbox"}
    print(json.dumps(ready), flush=True)
    if "--stop-with-stdin" in sys.argv:
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
