"""The handshake matrix: who is let in, who is not, and that nothing else is looked at (X1)."""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kernel.random import Random
from coterie.transport.handshake import BYTES_MOST, Established, Handshake, OtherIncarnation
from coterie.transport.identity import PROTOCOL, Identity
from coterie.transport.protocol import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coterie.transport.handshake import Role

SECRET, NEW, OTHER = b"s" * 32, b"n" * 32, b"o" * 32
WEB = Identity("shop", "1" * 32)
IMPORTER = Identity("shop", "2" * 32)


def end(role: Role, *, secrets: Sequence[bytes] = (SECRET,), me: Identity | None = None, **options: Any) -> Handshake:
    options.setdefault("seal", False)
    options.setdefault("chance", Random())
    me = me or (WEB if role == "client" else IMPORTER)
    return Handshake(role=role, me=me, secrets=secrets, **options)


def cut(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    while data:
        size = next(sizes, len(data))
        yield data[:size]
        data = data[size:]


def talk(
    client: Handshake,
    server: Handshake,
    *,
    change: Callable[[str, bytes], bytes] = lambda name, message: message,
    sizes: Sequence[int] = (),
) -> dict[str, bytes]:
    """Let two ends talk until both are done or one refuses; the messages that crossed the wire, as sent."""
    sent: dict[str, bytes] = {}
    splits = iter(sizes)
    names = iter(["client hello", "server hello", "client proof", "server proof"])
    message, to, other = client.begin(), server, client
    while message:
        name = next(names)
        sent[name] = message
        message = b"".join([to.receive(piece) for piece in cut(change(name, message), splits)])
        to, other = other, to
    return sent


def established(one: Handshake) -> Established:
    assert one.done is not None
    return one.done


def test_both_learn_who_the_other_is_and_what_both_speak() -> None:
    client, server = end("client"), end("server")
    talk(client, server)
    assert (established(client).peer, established(server).peer) == (IMPORTER.incarnation, WEB.incarnation)
    assert established(client).protocol == established(server).protocol == PROTOCOL
    assert established(client).leftover == established(server).leftover == b""


@given(st.lists(st.integers(1, 90), max_size=200))
def test_bytes_may_arrive_in_any_split(sizes: list[int]) -> None:
    client, server = end("client"), end("server")
    talk(client, server, sizes=sizes)
    assert client.done and server.done  # noqa: PT018 one sentence


def test_bytes_may_arrive_one_by_one() -> None:
    client, server = end("client"), end("server")
    talk(client, server, sizes=[1] * 1000)
    assert client.done and server.done  # noqa: PT018 one sentence


def test_a_stranger_is_read_512_bytes_of_at_most() -> None:
    sent = talk(end("client"), end("server"))
    assert {name: len(message) for name, message in sent.items()} == {
        "client hello": 81,
        "server hello": 81,
        "client proof": 128,
        "server proof": 64,
    }
    assert BYTES_MOST == 81 + 128
    assert sum(map(len, sent.values())) <= 512


def test_what_follows_the_servers_proof_at_once_is_kept_for_the_connection() -> None:
    client, server = end("client"), end("server")
    talk(client, server, change=lambda name, message: message + b"frames" * (name == "server proof"))
    assert established(client).leftover == b"frames"


@pytest.mark.parametrize("name", ["client hello", "server hello", "client proof"])
def test_whoever_speaks_out_of_turn_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="more than the handshake asks for"):
        talk(end("client"), end("server"), change=lambda at, message: message + b"x" * (at == name))


@pytest.mark.parametrize("name", ["client hello", "server hello", "client proof", "server proof"])
def test_every_flipped_bit_is_refused(name: str) -> None:
    length = len(talk(end("client"), end("server"))[name])
    for bit in range(length * 8):

        def flip(at: str, message: bytes, bit: int = bit) -> bytes:
            number = int.from_bytes(message, "big") ^ ((1 << bit) if at == name else 0)
            return number.to_bytes(len(message), "big")

        client, server = end("client"), end("server")
        with pytest.raises(Refused):
            talk(client, server, change=flip)
        assert client.done is None, f"bit {bit} of the {name} does not count"
        # The server has no later message to learn from, but one that a client changed does not get past it.
        assert server.done is None or name in ("client proof", "server proof")


@pytest.mark.parametrize("name", ["client hello", "server hello", "client proof", "server proof"])
def test_whatever_is_cut_short_lets_nobody_in(name: str) -> None:
    length = len(talk(end("client"), end("server"))[name])
    for kept in range(length):

        def shorten(at: str, message: bytes, kept: int = kept) -> bytes:
            return message[:kept] if at == name else message

        client, server = end("client"), end("server")
        talk(client, server, change=shorten)
        assert client.done is None
        assert server.done is None or name == "server proof"


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=600), st.sampled_from(["client", "server"]))
def test_junk_is_refused_with_nothing_else_than_refused(junk: bytes, role: Role) -> None:
    one = end(role)
    one.begin()
    with pytest.raises(Refused):
        one.receive(junk + b"\0" * BYTES_MOST)
    assert one.done is None


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00", b"SSH-2.0-OpenSSH", b"\0\0\0\x08"])
def test_another_protocol_is_refused_at_its_first_bytes(text: bytes) -> None:
    with pytest.raises(Refused, match="does not speak the protocol"):
        end("server").receive(text[:4])


def test_a_refused_end_stays_refused() -> None:
    server = end("server")
    for _ in range(2):
        with pytest.raises(Refused, match="does not speak"):
            server.receive(b"junk")


def test_a_wrong_secret_is_refused_by_both_ends() -> None:
    with pytest.raises(Refused, match="does not know the secret") as caught:
        talk(end("client", secrets=[OTHER]), end("server"))
    client, server = end("client"), end("server", secrets=[OTHER])
    hello = server.receive(client.begin())
    client.receive(hello)
    with pytest.raises(Refused, match="does not know the secret"):
        client.receive(b"\0" * 64)  # a server that lets anybody in still has to prove itself
    assert client.done is None
    assert SECRET.decode() not in str(caught.value)


def test_a_server_reveals_nothing_of_the_secret_to_who_merely_connects() -> None:
    """The only answer that a stranger gets is made of public fields and a nonce."""
    one, other = end("server", chance=Random(7)), end("server", chance=Random(7), secrets=[OTHER])
    hello = end("client").begin()
    assert one.receive(hello) == other.receive(hello)


@pytest.mark.parametrize(
    ("clients", "servers"),
    [
        ([SECRET], [NEW, SECRET]),
        ([SECRET], [SECRET, NEW]),
        ([NEW, SECRET], [SECRET]),
        ([SECRET, NEW], [SECRET]),
        ([NEW, SECRET], [NEW]),
        ([SECRET, NEW], [NEW]),
        ([NEW], [NEW, SECRET]),
        ([NEW, SECRET], [NEW, SECRET]),
        ([NEW, SECRET], [SECRET, NEW]),
        ([NEW, OTHER], [OTHER, SECRET]),
    ],
)
def test_during_rotation_one_common_secret_is_enough_in_any_order(clients: list[bytes], servers: list[bytes]) -> None:
    client, server = end("client", secrets=clients, seal=True), end("server", secrets=servers)
    talk(client, server)
    sealer, opener = established(client).sealer, established(server).opener
    assert sealer is not None
    assert opener is not None
    assert opener.open(sealer.seal(b"hello")) == [b"hello"]


def test_after_rotation_the_old_secret_is_refused() -> None:
    with pytest.raises(Refused, match="does not know the secret"):
        talk(end("client", secrets=[SECRET]), end("server", secrets=[NEW, OTHER]))


def test_another_cluster_with_the_same_secret_is_refused_and_named_as_such() -> None:
    with pytest.raises(Refused, match="another cluster than 'shop'"):
        talk(end("client", me=replace(WEB, cluster="test")), end("server"))


def test_the_cluster_is_judged_after_the_proof_so_that_strangers_learn_nothing() -> None:
    with pytest.raises(Refused, match="does not know the secret"):
        talk(end("client", me=replace(WEB, cluster="test"), secrets=[OTHER]), end("server"))


def test_another_incarnation_than_expected_is_reported_with_the_one_found_m2() -> None:
    client = end("client", expects="3" * 32)
    with pytest.raises(OtherIncarnation) as caught:
        talk(client, end("server"))
    assert caught.value.found == IMPORTER.incarnation
    assert client.done is None
    talk(end("client", expects=IMPORTER.incarnation), end("server"))


def test_a_stranger_that_claims_another_incarnation_is_no_witness_m2() -> None:
    """Only a proved answer may count as evidence that a runner is gone."""
    client = end("client", expects="3" * 32)
    with pytest.raises(Refused) as caught:
        talk(client, end("server"), change=lambda at, message: message[::-1] if at == "server proof" else message)
    assert not isinstance(caught.value, OtherIncarnation)


def replayed(role: Role, recorded: dict[str, bytes]) -> Handshake:
    """A fresh end that hears what was recorded of the other."""
    one, other = end(role), "server" if role == "client" else "client"
    one.begin()
    for name in (f"{other} hello", f"{other} proof"):
        one.receive(recorded[name])
    return one


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_recorded_handshake_is_refused_when_replayed(role: Role) -> None:
    recorded = talk(end("client"), end("server"))
    with pytest.raises(Refused, match="does not know the secret"):
        replayed(role, recorded)


def test_our_own_hello_sent_back_is_refused() -> None:
    client = end("client")
    with pytest.raises(Refused):
        client.receive(client.begin())


def test_a_reflected_challenge_is_refused_even_in_the_right_envelope() -> None:
    client, server = end("client", chance=Random(7)), end("server", chance=Random(7))
    with pytest.raises(Refused, match="our own challenge"):
        talk(client, server)


def test_our_own_proof_sent_back_is_refused() -> None:
    """Directions have labels of their own: a client's proof proves nothing to a client."""
    client, server = end("client"), end("server")
    hello = server.receive(client.begin())
    proof = client.receive(hello)
    with pytest.raises(Refused, match="does not know the secret"):
        client.receive(proof[:64])


def test_a_proof_got_from_another_server_does_not_open_this_one() -> None:
    """A false server passes a real one's challenge on to a client: the nonces of the client do not fit."""
    server = end("server")
    stranger = end("client", secrets=[OTHER])
    challenge = server.receive(stranger.begin())
    victim = end("client")
    victim.begin()
    proof = victim.receive(challenge)
    with pytest.raises(Refused, match="does not know the secret"):
        server.receive(proof)


def speaking(newest: int, least: int, identity: Identity) -> Identity:
    return replace(identity, protocol=newest, protocol_least=least)


@pytest.mark.parametrize(
    ("clients", "servers", "both"),
    [((2, 1), (1, 1), 1), ((1, 1), (2, 1), 1), ((3, 2), (2, 1), 2), ((2, 1), (3, 2), 2), ((4, 1), (4, 3), 4)],
)
def test_neighbouring_versions_speak_the_newest_that_both_know_l3(
    clients: tuple[int, int], servers: tuple[int, int], both: int
) -> None:
    client, server = end("client", me=speaking(*clients, WEB)), end("server", me=speaking(*servers, IMPORTER))
    talk(client, server)
    assert established(client).protocol == established(server).protocol == both


@pytest.mark.parametrize(("clients", "servers"), [((1, 1), (3, 2)), ((3, 2), (1, 1))])
def test_versions_too_far_apart_are_refused_with_both_ranges(
    clients: tuple[int, int], servers: tuple[int, int]
) -> None:
    client, server = end("client", me=speaking(*clients, WEB)), end("server", me=speaking(*servers, IMPORTER))
    with pytest.raises(Refused, match=r"protocol . to ., this program . to ."):
        talk(client, server)
    assert server.done is None


@pytest.mark.parametrize("name", ["client hello", "server hello"])
def test_nobody_in_between_can_make_two_new_programs_speak_an_old_version(name: str) -> None:
    def downgrade(at: str, message: bytes) -> bytes:
        return message[:13] + b"\0\1\0\1" + message[17:] if at == name else message

    client, server = end("client", me=speaking(2, 1, WEB)), end("server", me=speaking(2, 1, IMPORTER))
    with pytest.raises(Refused, match="does not know the secret"):
        talk(client, server, change=downgrade)


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True), (True, True)])
def test_all_is_sealed_if_either_end_wants_it(ours: bool, theirs: bool) -> None:
    client, server = end("client", seal=ours), end("server", seal=theirs)
    talk(client, server)
    one, other = established(client), established(server)
    assert one.sealer and one.opener and other.sealer and other.opener  # noqa: PT018 one sentence
    assert other.opener.open(one.sealer.seal(b"there")) == [b"there"]
    assert one.opener.open(other.sealer.seal(b"back")) == [b"back"]


def test_nothing_is_sealed_if_neither_wants_it() -> None:
    client, server = end("client"), end("server")
    talk(client, server)
    assert established(client).sealer is None
    assert established(server).opener is None


def test_keys_are_new_in_each_connection_and_one_per_direction() -> None:
    records = []
    for _ in range(2):
        client, server = end("client", seal=True), end("server", seal=True)
        talk(client, server)
        for one in (established(client), established(server)):
            assert one.sealer is not None
            records.append(one.sealer.seal(b"same"))
    assert len(set(records)) == 4


def test_proofs_are_compared_in_constant_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("coterie.transport.handshake.hmac.compare_digest", spy)
    client, server = end("client", secrets=[NEW, SECRET]), end("server", secrets=[SECRET, OTHER])
    proof = client.receive(server.receive(client.begin()))
    server.receive(proof)
    assert compared == [(32, 32)] * 5, "two proofs against two secrets, and the cluster"


def test_the_secret_is_never_sent_and_never_shown_x4() -> None:
    client, server = end("client", seal=True), end("server")
    sent = talk(client, server)
    shown = repr(client) + repr(client.done) + repr(established(client).sealer)
    assert SECRET not in b"".join(sent.values())
    assert SECRET.decode() not in shown


def test_a_closed_connection_is_explained() -> None:
    client, server = end("client"), end("server")
    assert "in the middle of the handshake, after 0 bytes" in client.closed().reason
    client.receive(server.receive(client.begin()))
    assert "it has another secret, or is another cluster" in client.closed().reason
    server.receive(b"")
    assert "in the middle" in server.closed().reason


@pytest.mark.parametrize("secrets", [[], [b"short"], [SECRET, NEW, OTHER], [SECRET, b""]])
def test_secrets_are_one_or_two_and_not_short(secrets: list[bytes]) -> None:
    with pytest.raises(ValueError, match="1 or 2 secrets of at least 16 bytes"):
        end("client", secrets=secrets)


@pytest.mark.parametrize("incarnation", ["", "x" * 33, "a\0b", "é"])
def test_an_incarnation_that_does_not_fit_its_field_is_refused(incarnation: str) -> None:
    with pytest.raises(ValueError, match=r"incarnation|ascii"):
        end("client", me=replace(WEB, incarnation=incarnation))


def test_the_bytes_of_version_1_are_these() -> None:
    """A recorded handshake: if this fails, programs of the version before are locked out."""
    client, server = end("client", chance=Random(1), seal=True), end("server", chance=Random(2))
    sent = talk(client, server)
    sealer = established(client).sealer
    assert sealer is not None
    sent["record"] = sealer.seal(b"hello")
    assert {name: message.hex() for name, message in sent.items()} == RECORDED


RECORDED = {
    "client hello": (
        "636f74657269650a434c4e54010001000131313131313131313131313131313131313131313131313131313131313131"
        "311e2feb89414c343c1027c4d1c386bbc4cd613e30d8f16adf91b7584a2265b1f5"
    ),
    "server hello": (
        "636f74657269650a53525652000001000132323232323232323232323232323232323232323232323232323232323232"
        "325c6e433715ba2bdd177219d30e7a269fd95bafc8f2a4d27bdcf4bb99f4bea973"
    ),
    "client proof": (
        "a762823f4e44a3b775c1a5c4ddb92dca89dca15ae9c8230603094deb60f8dec34c5a6534fd74ab36d2a3fc27dbef2941"
        "068d2ab1c1aa6e585752cba043a8eddda762823f4e44a3b775c1a5c4ddb92dca89dca15ae9c8230603094deb60f8dec3"
        "4c5a6534fd74ab36d2a3fc27dbef2941068d2ab1c1aa6e585752cba043a8eddd"
    ),
    "server proof": (
        "cb02aa7fa595370941a1799c483954969329770c7f6b32674107d32bb1e6574eb2da9f1f4a980bdfd8a0a98e7c579d26"
        "1bc18576971529d2ebb5683f37b8a61e"
    ),
    "record": "0000000535154f2aa537e2c2e198ef96b6fe83d968656c6c6f",
}
