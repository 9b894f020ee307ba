"""One model is told from another, also when it has the same name and size."""

import os

import pytest

from tenuto.connectors.session.fingerprint import _VOLATILE, fingerprint_config, fingerprint_weights

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 20_000)
    (tmp_path / "notes.txt").write_text("not weights")
    return tmp_path


def test_it_is_the_same_while_nothing_changes(folder):
    assert fingerprint_weights(folder) == fingerprint_weights(folder)
    (folder / "notes.txt").write_text("changed")
    assert fingerprint_weights(folder) == fingerprint_weights(folder)


def test_weights_trained_in_place_are_other_weights_even_with_their_old_time(folder):
    before = fingerprint_weights(folder)
    path = folder / "model.safetensors"
    status = path.stat()
    path.write_bytes(bytes(range(255, -1, -1)) * 20_000)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert fingerprint_weights(folder) != before


def test_a_touched_file_is_another_to_be_safe(folder):
    before = fingerprint_weights(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert fingerprint_weights(folder) != before


def test_another_file_beside_it_is_another_model(folder):
    before = fingerprint_weights(folder)
    (folder / "extra.safetensors").write_bytes(b"x")
    assert fingerprint_weights(folder) != before


def test_a_hub_snapshot_is_told_by_its_revision(tmp_path):
    blobs, revision = tmp_path / "blobs", "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "snapshots" / revision
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "b").write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to(blobs / "b")
    assert fingerprint_weights(snapshot) == f"revision:{revision}"
    (snapshot / "edited.safetensors").write_bytes(b"not from the hub")
    assert fingerprint_weights(snapshot).startswith("files:")


def test_a_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no weight files"):
        fingerprint_weights(tmp_path)


def test_a_configuration_counts_but_not_what_says_nothing_of_the_model():
    config = {"hidden_size": 8, "rope": {"theta": 1e4}, "architectures": ["A"]}
    same = {"architectures": ["A"], "rope": {"theta": 1e4}, "hidden_size": 8, "_name_or_path": "/elsewhere"}
    assert fingerprint_config(config) == fingerprint_config(same)
    assert fingerprint_config(config) != fingerprint_config({**config, "rope": {"theta": 1e5}})


@pytest.mark.parametrize("key", _VOLATILE)
def test_keys_that_say_nothing_of_the_model_are_left_out_wherever_they_stand(key):
    def config(value):
        return {key: value, "text_config": {key: value, "layers": [{key: value, "size": 8}]}}

    assert fingerprint_config(config("one")) == fingerprint_config(config("two"))
    assert fingerprint_config(config("one")) != fingerprint_config({"text_config": {"layers": [{"size": 9}]}})


def test_a_weight_file_alone_is_told_like_one_in_a_folder(folder):
    file = folder / "model.safetensors"
    assert fingerprint_weights(file) == fingerprint_weights(folder)
    file.write_bytes(b"other")
    assert fingerprint_weights(file) == fingerprint_weights(folder) != ""


def test_weights_that_differ_behind_their_head_only_are_other_weights(folder):
    """A header alone, as in safetensors, says nothing of the values."""
    path = folder / "model.safetensors"
    before, status = fingerprint_weights(folder), path.stat()
    data = bytearray(path.read_bytes())
    data[1 << 20 :] = bytes(len(data) - (1 << 20))
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint_weights(folder) != before
