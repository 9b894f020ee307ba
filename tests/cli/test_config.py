"""`tenuto config`: what is in force, from where, as a file that gives the same."""

import tomllib

import pytest

from tenuto.cli.main import main
from tenuto.cli.memory import too_much_memory
from tenuto.cli.options import SHORT
from tenuto.config import Config, leaves, load_config
from tenuto.settings import combine, read_toml

pytestmark = pytest.mark.unit


def shown(capsys, *options):
    assert main(["config", *options]) == 0
    return capsys.readouterr().out


def remark(text, key):
    (line,) = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
    return line.partition("  # ")[2]


def test_the_defaults_are_a_file_that_gives_the_defaults(capsys):
    text = shown(capsys)
    assert load_config(tomllib.loads(text)) == Config()
    assert text.count("# default") == len(list(leaves()))


def test_what_is_shown_gives_what_was_shown_and_says_where_it_comes_from(capsys, tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('[tiers.disk]\npath = "/k\\"v \\\\ é\\u007f"\npoll_s = 1\n')
    options = ["--disk-capacity", "2 GiB", "--runtime.cache_generated", "false", "--tiers.disk.io_threads", "5"]
    text = shown(capsys, "--config", str(file), *options)
    config = load_config(tomllib.loads(text))
    assert config.tiers.disk.path == '/k"v \\ é\x7f'
    assert (config.tiers.disk.capacity, config.tiers.disk.io_threads) == ("2 GiB", 5)
    assert config.runtime.cache_generated is False
    assert remark(text, "path") == f"{file}:2"
    assert remark(text, "poll_s") == f"{file}:3"
    assert remark(text, "io_threads") == "option"
    assert remark(text, "retry_s") == "default"
    file.write_text(text)
    assert load_config(tomllib.loads(shown(capsys, "--config", str(file)))) == config


def test_each_mistake_is_a_line_and_the_exit_code_is_1(capsys, tmp_path):
    file = tmp_path / "t.toml"
    file.write_text("[layout]\nblock_token = 1\n")
    code = main(["config", "--config", str(file), "--tiers.disk.io_threads", "many", "--host-memory", "much"])
    assert code == 1
    assert capsys.readouterr().err.splitlines() == [
        f"tenuto config: {file}:2: layout.block_token: unknown setting; did you mean layout.block_tokens?",
        'tenuto config: tiers.host.capacity: \'much\' is not a size; write it as "4 GiB", "512 MiB" or bytes',
        "tenuto config: tiers.disk.io_threads: expected a whole number, got 'many'",
    ]


def test_help_has_every_setting_with_its_meaning(capsys):
    with pytest.raises(SystemExit):
        main(["config", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for leaf in leaves():
        option = f"--{leaf.name} {leaf.name.rpartition('.')[2].upper()} "
        assert option in text
        meaning = text.partition(option)[2]
        assert meaning[0].isalnum() or meaning[0] == '"', f"{leaf.name} has no docstring"
    for short in SHORT.values():
        assert f"{short} " in text


def test_options_are_not_abbreviated(capsys):
    """vLLM's --host is not --host-memory."""
    with pytest.raises(SystemExit):
        main(["config", "--host", "0.0.0.0"])
    assert "unrecognized arguments: --host 0.0.0.0" in capsys.readouterr().err


def test_an_option_that_is_mistyped_names_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["config", "--tiers.hots.capacity", "1GiB"])
    said = capsys.readouterr().err
    assert said.splitlines()[-1].endswith("did you mean --tiers.host.capacity?")
    assert said.startswith("usage: tenuto config")


STORE = """
class Store:
    def __init__(self, folder, codec, capacity_bytes): ...
    capacity = write = write_layers = commit = read = forget = reset = close = __init__
"""


@pytest.mark.parametrize(
    ("spec", "code", "line"),
    [
        ("shown_store:Store", 0, ""),
        ("nowhere:Store", 0, "tenuto config: warning: tiers.disk.store: 'nowhere' can't be imported here (No module"),
        ("shown_store:Other", 1, "tenuto config: tiers.disk.store: 'shown_store' has no Other; its classes: Store"),
        ("shown_store", 1, "tenuto config: tiers.disk.store: 'shown_store' is not \"module:Class\"; give"),
    ],
)
def test_a_store_of_others_is_looked_at_where_it_can_be_imported(capsys, tmp_path, monkeypatch, spec, code, line):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shown_store.py").write_text(STORE)
    assert main(["config", "--disk", "/x", "--tiers.disk.store", spec]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == bool(line)
    assert bool(shown.out) == (code == 0)


POLICY = """
class Policy:
    grow = cached = leased = forgotten = evict = lambda self, *_: None
class Half:
    grow = cached = lambda self, *_: None
"""


def test_a_policys_module_that_raises_is_one_line_that_names_it(capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "raising_policy.py").write_text("raise RuntimeError('no\\nlicence')\n")
    assert main(["config", "--tiers.host.policy", "raising_policy:Policy"]) == 1
    said = "tiers.host.policy: 'raising_policy' raises RuntimeError when it is imported (no licence); mend it"
    assert capsys.readouterr().err == f"tenuto config: {said}\n"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("shown_policy:Policy", 0, ""),
        ("nowhere:Policy", 0, "warning: {file}:2: tiers.host.policy: 'nowhere' can't be imported here (No module"),
        ("shown_policy:Half", 1, "{file}:2: tiers.host.policy: shown_policy:Half is no Policy: it lacks leased, forg"),
        ("shown_policy:Other", 1, "{file}:2: tiers.host.policy: 'shown_policy' has no Other; its classes: Policy, H"),
        ("lur", 1, "{file}:2: tiers.host.policy: no policy is named 'lur'; give one of default, lru, slru, lineage, "),
    ],
)
def test_a_policy_is_looked_at_before_anything_starts(capsys, tmp_path, monkeypatch, name, code, said):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shown_policy.py").write_text(POLICY)
    file = tmp_path / "t.toml"
    file.write_text(f'[tiers.host]\npolicy = "{name}"\n')
    for command in (["config"], ["serve", "m", "--dry-run"]):
        monkeypatch.setattr("tenuto.cli.serve.command.find_program", lambda model: ["vllm", model])
        assert main([*command, "--config", str(file)]) == code
        shown = capsys.readouterr()
        assert shown.err.startswith(f"tenuto {command[0]}: {said.format(file=file)}" if said else "")
        assert shown.err.count("\n") == bool(said)
        assert bool(shown.out) == (code == 0)


def test_a_url_of_events_is_looked_at(capsys):
    assert main(["config", "--events.url", "nats://broker:4222/kv"]) == 0
    assert 'url = "nats://broker:4222/kv"' in capsys.readouterr().out
    assert main(["config", "--events.url", "nats://me:pw@broker:4222"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("tenuto config: events.url: 'nats://...@broker:4222' has no subject")
    assert shown.count("\n") == 1
    assert main(["config", "--events.router_url", "zmq://*:5560"]) == 0
    assert 'router_url = "zmq://*:5560"' in capsys.readouterr().out
    for name in ("router_url", "engine_url"):
        url = {"router_url": "zmq://*:5560"} | {name: "nats://broker:4222/kv"}
        assert main(["config", *(word for key, value in url.items() for word in (f"--events.{key}", value))]) == 1
        shown = capsys.readouterr().err
        assert (
            shown
            == f"tenuto config: events.{name}: 'nats://broker:4222/kv' is no way that is known; give zmq://HOST:PORT\n"
        )


def test_more_host_memory_than_the_machine_has_is_a_warning_that_names_it(capsys, tmp_path):
    shown(capsys, "--host-memory", "1 MiB")
    assert main(["config", "--host-memory", "900TiB"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tenuto config: warning: tiers.host.capacity: 900TiB for each rank, and this machine has ")
    file = tmp_path / "t.toml"
    file.write_text('[tiers.host]\ncapacity = "3 GiB"\n')
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {2 << 20} kB\nMemAvailable: 9 kB\n")
    settings = combine([read_toml(file)])
    (line,) = too_much_memory(settings, tmp_path)
    assert line.startswith(f"{file}:2: tiers.host.capacity: 3 GiB for each rank, and this machine has 2.0 GiB in all")
    (tmp_path / "proc" / "meminfo").write_text("")
    assert too_much_memory(settings, tmp_path) == []
