"""What the runs amount to: speed-ups, equality of answers, and what must have happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenuto.cli.demo.messages import Facts, Run, Source
from tenuto.cli.demo.model import DTYPE, NAME
from tenuto.cli.demo.text import QUESTIONS
from tenuto.errors import TenutoError

MEASURED = (
    "First token: from the request's arrival in the engine to its first token, as the engine "
    "itself times it, after a short unrelated prompt has warmed it up. Host: the engine's own "
    "prefix cache was emptied before the request. Disk: a new process on the same folder. Engine: "
    "the engine's own prefix cache, nothing to load: the yardstick."
)


@dataclass(frozen=True)
class Outcome:
    """All runs of one demo, in the order they were made."""

    facts: Facts
    runs: tuple[Run, ...]

    def find(self, question: int, name: Source) -> Run:
        """The run of `question` whose context came from `name`."""
        for run in self.runs:
            if (run.question, run.name) == (question, name):
                return run
        raise TenutoError(f"question {question + 1} was not asked: {name}")

    def of_question(self, question: int) -> list[Run]:
        """All runs of one question, the earliest first."""
        return [run for run in self.runs if run.question == question]

    def is_same(self, run: Run) -> bool:
        """Whether the answer equals, token for token, the first one to the same question."""
        return run.output_ids == self.of_question(run.question)[0].output_ids

    @property
    def has_same_output(self) -> bool:
        """Whether every question was answered alike every time."""
        return all(self.is_same(run) for run in self.runs)

    def speedup(self, run: Run) -> float:
        """How many times sooner than the cold run the first token came."""
        return self.find(0, "cold").ttft_s / run.ttft_s

    def fault(self) -> str | None:
        """The first thing that should not be, in one line; none if the demo shows what it says."""
        for run in self.runs:
            number = run.question + 1
            if run.name == "cold" and run.reused_tokens:
                return f"the cold run reused {run.reused_tokens} tokens: it was not cold"
            if run.name != "cold" and run.reused_tokens < run.prompt_tokens // 2:
                return (
                    f"question {number}: no {run.name} hit: {run.reused_tokens} of "
                    f"{run.prompt_tokens} prompt tokens were reused"
                )
            if not self.is_same(run):
                first = self.of_question(run.question)[0]
                return f"question {number}: the {run.name} answer differs from the {first.name} one"
        return None

    def as_json(self) -> dict[str, Any]:
        """One object: the three runs of the first question, and all questions with theirs."""

        def figures(run: Run) -> dict[str, Any]:
            return {
                "name": run.name,
                "prompt_tokens": run.prompt_tokens,
                "reused_tokens": run.reused_tokens,
                "loaded_bytes": run.loaded_bytes,
                "ttft_s": round(run.ttft_s, 4),
                "output_ids": list(run.output_ids),
            }

        main_runs = [self.find(0, name) for name in ("cold", "host", "disk")]
        return {
            "model": f"{NAME} ({DTYPE})",
            "engine": self.facts.engine,
            "threads": self.facts.threads,
            "measured": MEASURED,
            "runs": [figures(run) for run in main_runs],
            "questions": [
                {
                    "question": question,
                    "answer": self.of_question(index)[0].text.strip(),
                    "runs": [figures(run) for run in self.of_question(index)],
                }
                for index, question in enumerate(QUESTIONS)
            ],
            "speedup": {run.name: round(self.speedup(run), 1) for run in main_runs[1:]},
            "same_output": self.has_same_output,
        }
