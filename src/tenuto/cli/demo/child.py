"""One stage of the demo, in a process of its own: `python -m tenuto.cli.demo.child JOB`.

Standard output carries events and nothing else. Engines and libraries print there too, so it is
taken away from them first: what they say goes to standard error, which the parent keeps as a log.
An exception ends the process with its traceback in that log.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from tenuto.cli.demo import model, text
from tenuto.cli.demo.messages import Begin, Event, Facts, Job, Run, Source, decode_job, encode


class Channel:
    """Sends events to the parent. A parent that is gone ends the process (broken pipe)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def send(self, event: Event) -> None:
        """One line, at once."""
        self._stream.write(encode(event) + "\n")
        self._stream.flush()


def take_standard_output() -> Channel:
    """Keep standard output for events; file descriptor 1 becomes a copy of 2."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return Channel(events)


def run_stage(job: Job, channel: Channel) -> None:
    """First process: cold, then host hits. Second process: a disk hit, then the engine's own."""
    is_first = job.stage == "first"
    ordinal = "first" if is_first else "second"
    channel.send(Begin(f"starting the {ordinal} engine process"))
    from tenuto.cli.demo.engine import ENGINE_NAME, Engine

    engine = Engine(job.model, job.kv)
    channel.send(Facts(engine=ENGINE_NAME, threads=int(os.environ.get("OMP_NUM_THREADS", "0"))))
    channel.send(Begin("warming up with a short prompt"))
    engine.ask(engine.tokens([{"role": "user", "content": text.WARM_UP}]), max_tokens=8)

    context = text.read_context()
    prompts = [engine.tokens(text.chat(question, context)) for question in text.QUESTIONS]

    def ask(index: int, name: Source) -> None:
        label = {
            "cold": "computing the whole prompt",
            "host": "host hit",
            "disk": "disk hit",
            "engine": "engine's own cache",
        }
        channel.send(Begin(f"question {index + 1}: {label[name]}"))
        answer = engine.ask(prompts[index], text.MAX_OUTPUT_TOKENS)
        channel.send(
            Run(
                question=index,
                name=name,
                prompt_tokens=answer.prompt_tokens,
                reused_tokens=answer.reused_tokens,
                loaded_bytes=answer.loaded_bytes,
                ttft_s=answer.ttft_s,
                output_ids=answer.output_ids,
                text=answer.text,
            )
        )

    if is_first:
        ask(0, "cold")
        for index in range(len(prompts)):
            engine.forget()
            ask(index, "host")
    else:
        ask(0, "disk")
        for index in range(1, len(prompts)):
            ask(index, "engine")
    channel.send(Begin("shutting down: what is on its way to disk gets there"))
    engine.close()


def main() -> None:
    """Run the job that the command line gives."""
    channel = take_standard_output()
    job = decode_job(sys.argv[1])
    if job.stage == "model":
        from pathlib import Path

        channel.send(Begin(f"writing {model.NAME} as {model.DTYPE} (once)"))
        model.write(Path(job.model))
    else:
        run_stage(job, channel)


if __name__ == "__main__":
    main()
