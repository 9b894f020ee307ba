"""Settings from a file, from keys beside it and from options: who wins, and how mistakes are placed."""

import tomllib

import pytest

from tenuto.config import ADMISSION_NAMES, POLICY_NAMES, Config
from tenuto.errors import ConfigError
from tenuto.manager import ADMISSIONS
from tenuto.pools import POLICIES
from tenuto.settings import DEFAULT, Source, combine, flatten, load_settings, nest, read_toml

pytestmark = pytest.mark.unit

TEXT = """\
# ours
[tiers.host]
capacity = "1 GiB"

[tiers]
disk = { path = "/kv", io_threads = 3 }

[ runtime ]
"retry_s" = 4
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tenuto.toml"
    path.write_text(TEXT)
    return path


def refusal(call, *arguments):
    with pytest.raises(ConfigError) as raised:
        call(*arguments)
    return str(raised.value).splitlines()


def test_later_sources_go_before_earlier_ones_and_each_setting_knows_its_place(file):
    settings = combine([read_toml(file), Source("option", {"tiers": {"host": {"capacity": "2 GiB"}}})])
    assert settings.config.tiers.host.capacity == "2 GiB"
    assert settings.config.tiers.disk.io_threads == 3
    assert settings.config.runtime.retry_s == 4
    assert {name: place for name, place in settings.places.items() if place != DEFAULT} == {
        "tiers.host.capacity": "option",
        "tiers.disk.path": f"{file}:6",
        "tiers.disk.io_threads": f"{file}:6",
        "runtime.retry_s": f"{file}:9",
    }


def test_a_connectors_keys_go_before_the_file_they_name(file):
    config = load_settings({"config": str(file), "runtime": {"retry_s": 5}})
    assert (config.runtime.retry_s, config.tiers.disk.path) == (5, "/kv")
    assert load_settings({}) == Config()


def test_mistakes_of_all_sources_are_listed_with_file_and_line(file):
    file.write_text(TEXT.replace("capacity", "capacty").replace("= 3", "= 999"))
    assert refusal(load_settings, {"config": str(file), "modl": {}}) == [
        f"{file}:3: tiers.host.capacty: unknown setting; did you mean tiers.host.capacity?",
        f"{file}:6: tiers.disk.io_threads: 999 is out of range; give 0 to 256",
        "modl: unknown setting; did you mean model?",
    ]


@pytest.mark.parametrize(
    ("text", "option", "line"),
    [
        ("policy = 'lur'", {}, "{file}:2: tiers.disk.policy: no policy is named 'lur'; give one of default, lru"),
        ("admission = 'some'", {}, "{file}:2: tiers.disk.admission: no admission is named 'some'; give one of default"),
        ("policy = 'a b:C'", {}, "{file}:2: tiers.disk.policy: 'a b:C' is not \"module:Class\"; give"),
        ("poll_s = 1", {}, "{file}:2: tiers.disk.poll_s: there is no disk tier without tiers.disk.path"),
        ("path = '/x'\nruntime = 'striped'", {}, "{file}:3: tiers.disk.stripes: no folders to stripe over"),
        ("path = '/x'\nstripes = ['/y']", {}, '{file}:3: tiers.disk.runtime: "file" stripes nothing'),
        ("path = '/x'\nruntime = 'cufile'", {"stripes": ["/y"]}, '{file}:3: tiers.disk.runtime: "cufile" stripes'),
        ("path = '/x'\nruntime = 'striped'", {"runtime": "file", "stripes": ["/y"]}, 'tiers.disk.runtime: "file"'),
        ("", {"poll_s": 1}, "tiers.disk.poll_s: there is no disk tier"),
    ],
)
def test_names_and_settings_that_are_wrong_together_are_placed_as_others_are(file, text, option, line):
    file.write_text(f"[tiers.disk]\n{text}\n")
    (said,) = refusal(load_settings, {"config": str(file), "tiers": {"disk": option}})
    assert said.startswith(line.format(file=file))


def test_the_names_of_the_settings_are_those_that_there_are():
    assert (tuple(POLICIES), tuple(ADMISSIONS)) == (POLICY_NAMES, ADMISSION_NAMES)


@pytest.mark.parametrize("text", ["[tiers\n", "[tiers.host]\ncapacity = 4 GiB\n", "a = 1\na = 2\n"])
def test_what_is_not_toml_is_one_line_with_its_place(file, text):
    file.write_text(text)
    number = len(text.splitlines())
    (line,) = refusal(read_toml, file)
    assert line.startswith(f"{file}:{number}: not TOML: ")
    assert "column" not in line


def test_a_file_that_ends_in_the_middle_is_one_line(file):
    file.write_text("a = [1,")
    (line,) = refusal(read_toml, file)
    assert line.startswith(f"{file}: not TOML: ")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "image").write_bytes(b"\xff\xd8")
    assert refusal(read_toml, tmp_path / "image")[0].endswith("is not UTF-8 text; give the path of a TOML file")
    for path in (tmp_path, tmp_path / "none"):
        (line,) = refusal(load_settings, {"config": str(path)})
        assert line.startswith(f"config: can't read {path} (")
    assert refusal(load_settings, {"config": 3}) == ["config: expected the path of a TOML file, got 3"]


def test_a_mark_before_the_text_is_none_of_it(file):
    file.write_text(TEXT, "utf-8-sig")
    assert read_toml(file).settings == tomllib.loads(TEXT)


@pytest.mark.parametrize(
    ("text", "why"),
    [(f"a = {'9' * 5000}", "digits"), (f"a = 0x{'f' * 5000}", "digits"),
     (f"a = {'[' * 5000}", "brackets"), (f"{'.'.join('a' * 5000)} = 1", "names in each other")],
)  # fmt: skip
def test_what_is_too_long_or_too_deep_is_one_line(file, text, why):
    file.write_text(text)
    (line,) = refusal(read_toml, file)
    assert line.startswith(f"{file}: not TOML for tenuto: ")
    assert why in line
    assert len(line) < 300


@pytest.mark.parametrize("path", ["~nobody-here/x", "~a\0/x", "a\0b", "\ud800"])
def test_a_path_that_leads_nowhere_is_one_line(path):
    (line,) = refusal(load_settings, {"config": path})
    assert line.startswith("config: ")


def test_a_file_does_not_name_another(file):
    file.write_text('config = "other.toml"')
    (line,) = refusal(load_settings, {"config": str(file)})
    assert line.startswith(f"{file}:1: config: unknown setting")


def test_nesting_is_the_inverse_of_flattening():
    nested = tomllib.loads(TEXT)
    assert flatten(nested)["tiers.disk.path"] == "/kv"
    assert nest(flatten(nested)) == nested
