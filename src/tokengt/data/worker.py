"""A worker process: shards of rows come in on stdin, their arrays go out on stdout, until stdin ends.

It is started as ``python -m tokengt.data.worker`` by :mod:`tokengt.data.engines`. An answer is a ShardArrays, or the
exception that was raised instead. Pickles are exchanged with the parent process only, never with anybody else. Nothing
here imports torch, so a worker starts quickly and stays small.
"""

import os
import pickle
import sys
import traceback

from tokengt.data.shards import convert_shard


def main() -> None:
    # The parent reads answers from stdout, so everything else that is printed, by C libraries too, goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            rows, recipe = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):  # the parent has finished, or was killed
            return
        try:
            answer: object = convert_shard(rows, recipe)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = error
        try:
            pickle.dump(answer, answers, protocol=5)
            answers.flush()
        except BrokenPipeError:
            # The parent is gone: nobody waits for the rest, and closing the file would fail again.
            os._exit(1)


if __name__ == "__main__":
    main()
