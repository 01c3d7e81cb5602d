"""A model of how one job moves between the store and the shelf (shelf/moving.py): all its states are visited.

Two clients use the id: one puts it twice, the other cancels it once. A consumer takes the job and finishes it. The job
is moved out and back, the process that moves it ends at any step, and the call of a script may come at any later time,
also that of a put. Clients ask for the id, which is held then until the generation passes. A cancel notices when it
took longer than that. Not in the model: several ids, and disks that lose what was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

Safeguard = Literal["late calls", "numbers taken", "held ids", "generation in puts", "second look"]
"""What can be left out, to see that the model finds the fault: late calls do nothing; a settlement takes the number of
a batch that was not moved; ids that were asked for are held; a put names the generation in which it asked; a cancel
whose last look came too late asks and looks again.
"""
PUTS = 2


class Move(NamedTuple):
    """A batch with this one job: its way, number, token, the version of the job, and the generation of a batch out."""

    way: Literal["out", "in"]
    number: int
    token: int
    version: int
    generation: int = 0


class State(NamedTuple):
    """Everything at one instant. A version is the number of the put that stored it."""

    stored: int | None = None
    row: int | None = None
    note: Move | None = None
    """The move under way, as the files have it."""
    out: int = 0
    back: int = 0
    """The last numbers of batches, in the store."""
    tokens: tuple[int, int] = (0, 0)
    """Of the last batches out and in that were moved, in the store."""
    has_left: bool = False
    """Whether the last batch out took the job with it; else it stayed."""
    mover: Literal["idle", "to write", "to send", "to confirm", "ended"] = "idle"
    picked: int | None = None
    calls: frozenset[Move] = frozenset()
    """Calls of scripts on their way to the store."""
    ends: int = 0
    batches: int = 0
    generation: int = 1
    held_in: int = 0
    """The generation in which the id was asked for last, by what the process that moves jobs knows."""
    first_valid: int = 0
    """The generation of the last batch out, in the store."""
    shelved: int = 0
    """How many jobs are on the shelf, in the store."""
    live: int | None = None
    """The version that must be somewhere."""
    gone: frozenset[int] = frozenset()
    puts: int = 0
    put: Literal["none", "to look"] | int = "none"
    """A number: the put is sent, with the generation in which it asked."""
    put_saw_none: bool = False
    """Whether there was an instant without the job since the put began."""
    cancel: Literal["none", "to send", "to ask", "to look again", "done"] = "none"
    cancel_is_timely: bool = False
    """Whether the id is held yet since the cancel asked."""
    cancel_saw_none: bool = False
    finished: bool = False

    @property
    def places(self) -> list[int]:
        """The versions that are anywhere, as a settlement would find them."""
        found = [] if self.stored is None else [self.stored]
        if self.row is not None and (self.note is None or self._is_on_shelf(self.note)):
            found.append(self.row)
        return found

    def _is_on_shelf(self, move: Move) -> bool:
        if move.way == "out":
            return self.tokens[0] == move.token and self.has_left
        return self.tokens[1] != move.token


Step = tuple[str, State | str]
"""What happens, and the state after it; or what is wrong with that."""


class Model:
    """The steps that are possible in a state, without the safeguards in `without`."""

    def __init__(self, *, ends: int, batches: int, generations: int = 3, without: Collection[Safeguard] = ()) -> None:
        self._ends = ends
        self._batches = batches
        self._generations = generations
        self._without = without

    def visit(self) -> tuple[int, str | None]:
        """How many states there are, and what is wrong in one of them, with the steps that lead to it."""
        first = State()
        came_from: dict[State, tuple[State, str] | None] = {first: None}
        to_visit = deque([first])
        while to_visit:
            state = to_visit.popleft()
            for name, found in self._steps(state):
                after = found if isinstance(found, str) else self._noting_absence(found)
                if wrong := after if isinstance(after, str) else _wrong(after):
                    return len(came_from), f"{wrong}: {' > '.join([*_path(came_from, state), name])}"
                assert isinstance(after, State)
                if after not in came_from:
                    came_from[after] = state, name
                    to_visit.append(after)
        return len(came_from), None

    @staticmethod
    def _noting_absence(state: State) -> State:
        if state.places:
            return state
        return state._replace(
            put_saw_none=state.put_saw_none or state.put != "none",
            cancel_saw_none=state.cancel_saw_none or state.cancel not in {"none", "done"},
        )

    def _steps(self, state: State) -> Iterator[Step]:
        yield from self._mover(state)
        for call in state.calls:
            yield f"the store: {call.way}", self._run(state._replace(calls=state.calls - {call}), call)
        yield from self._put(state)
        yield from self._cancel(state)
        if state.generation < self._generations:
            yield "the generation passes", state._replace(generation=state.generation + 1, cancel_is_timely=False)
        if state.stored is not None and not state.finished:
            yield "finish", _without_job(state)._replace(finished=True)

    # The process that moves jobs

    def _mover(self, state: State) -> Iterator[Step]:
        if state.mover == "idle" and state.batches < self._batches:
            if state.stored is not None and state.row is None:
                yield "pick", state._replace(mover="to write", picked=state.stored, batches=state.batches + 1)
            if state.row is not None:
                yield "note in", _with_note_in(state)
        if state.mover == "to write":
            assert state.picked is not None
            if "held ids" not in self._without and (state.held_in == state.generation or state.cancel_is_timely):
                yield "the id is held", state._replace(mover="idle", picked=None)
            else:
                move = Move("out", state.out + 1, state.batches, state.picked, state.generation)
                yield "write rows", state._replace(mover="to send", row=state.picked, note=move, picked=None)
        if state.mover == "to send":
            assert state.note is not None
            yield "send", state._replace(mover="to confirm", calls=state.calls | {state.note})
        if state.mover == "to confirm" and state.note not in state.calls:
            assert state.note is not None
            yield "end the move", _settled(state, state.note)
        if state.mover != "ended" and state.ends < self._ends:
            yield "the process ends", state._replace(mover="ended", picked=None, ends=state.ends + 1)
        if state.mover == "ended":
            # It does not know what was held, so its generation is a new one. But it moves nothing out for as long as a
            # cancel takes that is timely.
            yield "settle", self._settle(state)._replace(generation=state.generation + 1, held_in=0)

    def _run(self, state: State, call: Move) -> State:
        """A script that moves the job."""
        guarded = "late calls" not in self._without
        if call.way == "out":
            if guarded and state.out >= call.number:
                return state
            leaves = state.stored == call.version
            return state._replace(
                stored=None if leaves else state.stored,
                out=call.number,
                tokens=(call.token, state.tokens[1]),
                has_left=leaves,
                first_valid=call.generation,
                shelved=state.shelved + leaves,
            )
        if guarded and state.back >= call.number:
            return state
        stored = call.version if state.stored is None else state.stored
        tokens = state.tokens[0], call.token
        return state._replace(stored=stored, back=call.number, tokens=tokens, shelved=state.shelved - 1)

    def _settle(self, state: State) -> State:
        move = state.note
        if move is None:
            return state._replace(mover="idle")
        if "numbers taken" not in self._without:
            if move.way == "out":
                state = state._replace(out=max(state.out, move.number))
            else:
                state = state._replace(back=max(state.back, move.number))
        return _settled(state, move)

    # Clients

    def _put(self, state: State) -> Iterator[Step]:
        if state.put == "none" and state.puts < PUTS:
            yield "a put begins", state._replace(put="to look", put_saw_none=False)
        if state.put == "to look":
            if state.mover == "idle" and state.row is not None:
                yield "put: load first", _with_note_in(state)
            elif state.mover in {"idle", "to write"}:
                yield "put: ask", state._replace(put=state.generation, held_in=state.generation)
        if isinstance(state.put, int):
            is_late = state.shelved > 0 and state.put < state.first_valid
            if is_late and "generation in puts" not in self._without:
                yield "put: look again", state._replace(put="to look")
            elif state.stored is not None:
                yield "put: exists", state._replace(put="none", puts=state.puts + 1)
            elif state.live is not None and not state.put_saw_none:
                yield "put: created", "a job was created beside another one"
            else:
                version = state.puts + 1
                yield "put: created", state._replace(put="none", puts=version, stored=version, live=version)

    def _cancel(self, state: State) -> Iterator[Step]:
        if state.cancel == "none" and state.puts and not state.finished:
            yield "a cancel begins", state._replace(cancel="to send", cancel_saw_none=False)
        if state.cancel in {"to send", "to look again"} and state.stored is not None:
            yield "cancel: done", _without_job(state)._replace(cancel="done", cancel_is_timely=False)
        elif state.cancel == "to send":
            yield "cancel: not in the store", state._replace(cancel="to ask")
        elif state.cancel == "to look again" and not state.cancel_is_timely and "second look" not in self._without:
            yield "cancel: ask again", state._replace(cancel="to ask")
        elif state.cancel == "to look again":
            if state.live is None or state.cancel_saw_none:
                yield "cancel: not found", state._replace(cancel="done", cancel_is_timely=False)
            else:
                yield "cancel: not found", "a job was not found that was there all the time"
        if state.cancel == "to ask":
            if state.mover == "idle" and state.row is not None:
                yield "cancel: load first", _with_note_in(state)
            elif state.mover in {"idle", "to write"}:
                yield (
                    "cancel: ask",
                    state._replace(cancel="to look again", held_in=state.generation, cancel_is_timely=True),
                )


def _with_note_in(state: State) -> State:
    assert state.row is not None
    token = state.batches + 1
    return state._replace(mover="to send", note=Move("in", state.back + 1, token, state.row), batches=token)


def _settled(state: State, move: Move) -> State:
    """After the end of a move: the note is deleted, and the row of a job that is in the store, or gone."""
    is_on_shelf = state._is_on_shelf(move)
    return state._replace(mover="idle", note=None, row=state.row if is_on_shelf else None)


def _without_job(state: State) -> State:
    """The job in the store was cancelled, or finished."""
    assert state.stored is not None
    live = None if state.live == state.stored else state.live
    return state._replace(stored=None, live=live, gone=state.gone | {state.stored})


def _wrong(state: State) -> str | None:
    places = state.places
    if state.live is not None and state.live not in places:
        return "an acknowledged job is nowhere"
    if state.gone.intersection(places):
        return "a job is back after its end"
    if len(places) > 1:
        return "a job is in two places"
    return None


def _path(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names: list[str] = []
    while found := came_from[state]:
        state, name = found
        names.append(name)
    return names[::-1]
