"""What the demo asks: one long text as shared context, three questions about it."""

from __future__ import annotations

from importlib import resources

QUESTIONS = (
    "Is a religious test required to hold office?",
    "What is the supreme Law of the Land?",
    "What are the three branches of government?",
)
WARM_UP = "Say hello."
MAX_OUTPUT_TOKENS = 32

_INSTRUCTION = "You are a helpful assistant. Answer questions about the following document."


def read_context() -> str:
    """The text, a paragraph a line; the file's own remarks (`#`) are left out."""
    text = resources.files("tenuto.cli.demo").joinpath("constitution.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def chat(question: str, context: str) -> list[dict[str, str]]:
    """Messages of one question; the context comes first, so all questions share it as a prefix."""
    return [
        {"role": "system", "content": f"{_INSTRUCTION}\n\n{context}"},
        {"role": "user", "content": question},
    ]
