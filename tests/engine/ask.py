"""In a process of its own: start an engine, ask one prompt, print [cached tokens, output ids].

python -m tests.engine.ask MODEL ROOT
"""

import json
import sys
from pathlib import Path

from tests.engine.tiny import Engine, prompt

if __name__ == "__main__":
    engine = Engine(Path(sys.argv[1]), Path(sys.argv[2]), distributed_executor_backend=None)
    tokens = prompt(30, 300)
    answer = engine.ask(tokens)
    engine.forget()
    again = engine.ask(tokens)
    assert again == (256, answer[1]), again
    engine.llm.llm_engine.engine_core.shutdown()
    print(json.dumps(answer))
