"""A writer in a process of its own. Started by the contract suite; talks in lines of JSON.

python other_process.py <target> <directory> <generation>
<- {"ready": true}     -> {"commit": token}             <- {"outcome": ...} or {"error": ...}
                       -> {"prepare": epoch, "ids": []}  <- {"token": ...}
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from connectors.targets import BY_NAME, Writer, orders
from holdfast.core.contracts import Token


def main(name: str, directory: str, generation: str) -> None:
    """Open the target and do what the lines say."""
    writer = Writer(BY_NAME[name], Path(directory), int(generation))
    answer({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if "prepare" in order:
            answer({"token": writer.prepare(order["prepare"], orders(*order["ids"])).to_json_value()})
            continue
        try:
            answer({"outcome": writer.sink.commit(Token.from_json_value(order["commit"])).value})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


def answer(value: dict[str, object]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
