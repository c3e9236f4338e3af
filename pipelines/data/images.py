"""Images by the digests that texts name them with (`pipelines/data/marks.py`): where their pixels are, and how a model reads them.

Images are known in the whole process, wherever they come from: a data folder (`open_folder`), or an environment that draws them (`add`).
Only a model's embedding (`pipelines/engine/vision.py`) turns the ids of their places into features.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import DataError, ModelError
from pipelines.data.marks import FIRST_ID, PLACE_BITS, key_of, mark, marked, parts, place_ids, without

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER, FILE = "images", "images.arrow"
"""Of a data folder: its images, as PNG files in the rows of an Arrow file, which is mapped into memory. Samples have one more for each
shard whose episodes drew some."""
MOST_PIXELS = 16_777_216
"""Of an image; a file that says that it has more is not decoded (4096 x 4096)."""
KEPT_BYTES = 1 << 28
"""Of what processors made of images, and that may be asked for again."""


IN_JSON = re.compile(r"\\ufffc([0-9a-f]{32})\\ufffc")
"""A mark in a text of JSON."""


class ImageError(DataError):
    """A file is no image that can be used."""


def decoded(data: bytes, *, most_pixels: int = MOST_PIXELS) -> Image:
    """An image in RGB, turned as its EXIF data say and on white where it is transparent; of an animation the first frame.

    Raises:
        ImageError: the file is none, is damaged, or has too many pixels.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:  # reads the header alone
            _check_pixels(image, most_pixels)
            image.load()
            return upright(image, most_pixels=most_pixels)
    except ImageError:
        raise
    except Exception as error:  # Pillow raises a dozen types for damaged files
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ImageError(f"it is no image that can be read ({first})") from error


def upright(image: Image, *, most_pixels: int = MOST_PIXELS) -> Image:
    """A loaded image in RGB, turned as its EXIF data say and on white where it is transparent.

    Raises:
        ImageError: it has too many pixels.
    """
    from PIL import Image, ImageOps

    _check_pixels(image, most_pixels)
    turned = ImageOps.exif_transpose(image)
    if "A" in turned.getbands() or "transparency" in turned.info:
        turned = turned.convert("RGBA")
        ground = Image.new("RGBA", turned.size, "white")
        ground.alpha_composite(turned)
        turned = ground
    return turned.convert("RGB")


def _check_pixels(image: Image, most_pixels: int) -> None:
    width, height = image.size
    if width * height > most_pixels:
        raise ImageError(
            f"an image has {width} x {height} pixels, and at most {most_pixels:,} are read",
            fix="Make it smaller, or leave it out.",
        )


def digest_of(image: Image) -> str:
    """32 hexadecimal characters of a hash over size and pixels."""
    width, height = image.size
    return hashlib.sha256(b"%d %d " % (width, height) + image.convert("RGB").tobytes()).hexdigest()[:32]


class Images:
    """Images by digest: of opened files, and drawn ones."""

    def __init__(self) -> None:
        self._drawn: MutableMapping[str, bytes] = {}
        self._rows: dict[str, tuple[Any, int]] = {}
        """Digest → column of PNG files, and row in it."""
        self._digest_of: dict[int, str] = {}
        self._opened: set[Path] = set()

    def drawn(self, value: Any) -> dict[str, bytes]:
        """Digest → PNG file of the images drawn here that plain values name, by marks in texts or by ids of places in lists and tensors."""
        named: dict[str, bytes] = {}
        if self._drawn:
            for digest in map(self._digest_of.get, _keys(value)):
                if digest is not None and digest in self._drawn:
                    named[digest] = self._drawn[digest]
        return dict(sorted(named.items()))

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Forget the images that are added inside, such as noisy copies of which no row is made."""
        count = len(self._drawn)
        try:
            yield
        finally:
            for digest in list(self._drawn)[count:]:
                del self._drawn[digest], self._digest_of[key_of(digest)]

    def exchanged(self, tokens: Sequence[int], other: Callable[[str], str]) -> list[int]:
        """Token ids of a row with another image in the place of each.

        Args:
            other: digest → digest of an image of the same size, which so has as many places.
        """
        keys = {(token - FIRST_ID) >> PLACE_BITS for token in tokens if token >= FIRST_ID}
        moved = {
            key: (key_of(other(self.named(FIRST_ID + (key << PLACE_BITS)))) - key) << PLACE_BITS for key in sorted(keys)
        }
        return [token if token < FIRST_ID else token + moved[(token - FIRST_ID) >> PLACE_BITS] for token in tokens]

    def redraw(self, files: Mapping[str, bytes]) -> None:
        """Know what `drawn` gave in another process."""
        for digest, png in files.items():
            self._drawn[digest] = png
            self._note(digest)

    def add(self, image: Image) -> str:
        """The mark of an image, which is known from here on."""
        digest = digest_of(image)
        if digest not in self:
            self._drawn[digest] = _png(image)
            self._note(digest)
        return mark(digest)

    def spill(self, path: Path) -> None:
        """Keep the files of added images in a file, where they were in memory until now.

        Raises:
            OSError: it cannot be written.
        """
        from pipelines.data.spilled import Spilled

        if not isinstance(self._drawn, Spilled):
            spilled = Spilled(path)
            spilled.update(self._drawn)
            self._drawn = spilled

    def open_folder(self, data: Path) -> None:
        """Know the images of a data folder, where it has any; twice is once.

        Raises:
            DataError: two images share the part of their digests that token ids hold.
        """
        import pyarrow as pa

        for path in sorted((data / FOLDER).resolve().glob("*.arrow")):
            if path in self._opened:
                continue
            self._opened.add(path)
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            for row, digest in enumerate(table.column("digest").to_pylist()):
                if digest not in self._rows:
                    self._rows[digest] = table.column("png"), row
                    self._note(digest)

    def _note(self, digest: str) -> None:
        if self._digest_of.setdefault(key_of(digest), digest) != digest:
            raise DataError(
                f"two images have digests with the same beginning ({digest} and {self._digest_of[key_of(digest)]})",
                fix="Leave one of them out.",
            )

    def __contains__(self, digest: str) -> bool:
        return digest in self._drawn or digest in self._rows

    def png(self, digest: str) -> bytes:
        """The image's file.

        Raises:
            DataError: no such image is known.
        """
        if digest in self._drawn:
            return self._drawn[digest]
        if digest not in self._rows:
            raise DataError(
                f"a text names the image {digest}, which no data folder of this stage has",
                fix="Curate the data again with its images.",
            )
        column, row = self._rows[digest]
        return bytes(column[row].as_py())

    def image(self, digest: str) -> Image:
        """The image in RGB.

        Raises:
            DataError: no such image is known.
        """
        from PIL import Image

        with Image.open(io.BytesIO(self.png(digest))) as image:
            return image.convert("RGB")

    def named(self, token: int) -> str:
        """Digest of the image that a token id is a place of.

        Raises:
            DataError: no such image is known.
        """
        key = (token - FIRST_ID) >> PLACE_BITS
        if key not in self._digest_of:
            raise DataError(f"a row has tokens of an image that this stage does not know ({key:011x})")
        return self._digest_of[key]


IMAGES = Images()
"""Those that this process knows."""


def write(data: Path, images: Iterable[tuple[str, bytes]], name: str = FILE) -> int:
    """Write a data folder's images.

    Args:
        images: (digest, PNG file) of each, no digest twice.
        name: of the file.

    Returns:
        how many.
    """
    import pyarrow as pa

    schema = pa.schema([("digest", pa.string()), ("png", pa.large_binary())])
    count = 0
    path = data / FOLDER / name
    for digest, png in images:
        if count == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = pa.ipc.new_file(str(path), schema)
        writer.write_batch(pa.record_batch([[digest], [png]], schema=schema))
        count += 1
    if count:
        writer.close()
    return count


def copy_named(texts: Iterable[str], out: Path) -> int:
    """Write the images that texts name to another data folder, from those that this process knows."""
    digests = dict.fromkeys(digest for text in texts for digest in marked(text))
    return write(out, ((digest, IMAGES.png(digest)) for digest in digests))


def _keys(value: Any) -> Iterator[int]:
    """Of the images that plain values name; perhaps more than once, and numbers that are large for another reason too."""
    if isinstance(value, str):
        yield from map(key_of, marked(value))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _keys(each)
    elif isinstance(value, list | tuple):
        yield from {(each - FIRST_ID) >> PLACE_BITS for each in value if isinstance(each, int) and each >= FIRST_ID}
        for each in value:
            if not isinstance(each, int | float):
                yield from _keys(each)
    elif str(getattr(value, "dtype", "")) == "torch.int64":
        yield from _keys(value[value >= FIRST_ID].tolist())


def named(folder: Path) -> list[str]:
    """Digests of the images that the tables of a data folder or of samples name, in texts or token ids, in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    digests: dict[str, None] = {}
    for path in [*sorted(folder.glob("*.parquet")), *sorted((folder / "samples").glob("*.parquet"))]:
        with pq.ParquetFile(path) as handle:
            for batch in handle.iter_batches():
                for column in batch.columns:
                    if pa.types.is_string(column.type):
                        texts = pa.compute.filter(column, pa.compute.match_substring(column, r"\ufffc"))
                        digests |= dict.fromkeys(each for text in texts.to_pylist() for each in IN_JSON.findall(text))
                    elif pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type):
                        ids = column.flatten().to_numpy()
                        places = ids[(ids >= FIRST_ID) & (ids % (1 << PLACE_BITS) == 0)]
                        digests |= dict.fromkeys(IMAGES.named(int(place)) for place in dict.fromkeys(places.tolist()))
    return list(digests)


def write_named(out: Path, data: Path | None = None) -> list[str]:
    """Write the images that a folder's tables name, and of which it has no other file, from those that this process knows.

    Args:
        data: a folder that has some of them.

    Returns:
        their digests.
    """
    (out / FOLDER / FILE).unlink(missing_ok=True)  # a process may have it mapped into memory
    for folder in (out, *([] if data is None else [data])):
        IMAGES.open_folder(folder)
    elsewhere = _digests(out)
    digests = [digest for digest in named(out) if digest not in elsewhere]
    write(out, ((digest, IMAGES.png(digest)) for digest in digests))
    return digests


def _digests(data: Path) -> set[str]:
    """Of the images that a data folder has."""
    import pyarrow as pa

    files = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in (data / FOLDER).glob("*.arrow")]
    return {digest for table in files for digest in table.column("digest").to_pylist()}


def in_words(digests: Sequence[str]) -> str:
    """Sizes of images, for a card."""
    files = [IMAGES.png(digest) for digest in digests]
    sizes = sorted((struct.unpack(">II", file[16:24]) for file in files), key=lambda size: size[0] * size[1])
    (width, height), (widest, highest) = sizes[0], sizes[-1]
    return f"{width}x{height} to {widest}x{highest} pixels, {sum(map(len, files)) / 1e6:.3g} MB as PNG"


def refuse(tokenizer: Any, text: str) -> ModelError:
    """The error for a text with an image and a model that sees none."""
    where = str(getattr(tokenizer, "name_or_path", "") or "the model")[:200]
    reason = getattr(tokenizer, "image_reader", None) or "it reads text alone"
    return ModelError(
        "model.path",
        f"the data have images ({without(text).strip()[:60]!r}), which {where} cannot be shown: {reason}",
        "Name a model with a vision tower and its processor, or leave the images out (`images: drop` of the source).",
    )


def as_content(text: str) -> str | list[dict[str, Any]]:
    """A message's text as OpenAI's chat protocol has it: parts where it names images, which are sent with it as PNG files.

    Raises:
        DataError: an image is not known.
    """
    if not marked(text):
        return text
    content: list[dict[str, Any]] = []
    for piece, digest in parts(text):
        if piece.strip():
            content.append({"type": "text", "text": piece})
        if digest is not None:
            content.append({"type": "image_url", "image_url": {"url": data_url(digest)}})
    return content


def data_url(digest: str) -> str:
    """An image as a PNG file in an address.

    Raises:
        DataError: it is not known.
    """
    return "data:image/png;base64," + base64.b64encode(IMAGES.png(digest)).decode()


def _png(image: Image) -> bytes:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


class Reader:
    """A model's way to read images: the tokens that one becomes, and the tensors that the model makes features of.

    Args:
        processor: transformers' own, of the model's family, with the tokenizer that texts are encoded with.
        written: what the chat template writes for an image; None where it knows none, and texts say where one is.
        files: those that the processor was made of, by name; default: it writes its own.
    """

    def __init__(self, processor: Any, written: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        self.processor, self.written, self.files = processor, written, files
        self.placeholder = written or str(processor.image_token)
        self.image_token = int(processor.tokenizer.convert_tokens_to_ids(str(processor.image_token)))
        pil, videos = type(processor.image_processor).__name__.endswith("Pil"), hasattr(processor, "video_processor")
        self.backend = "" if videos else "pil" if pil else "torchvision"
        self._processed: OrderedDict[str, tuple[list[int], dict[str, Any], int]] = OrderedDict()
        self._bytes = 0

    def __deepcopy__(self, memo: Any) -> Reader:
        """Itself: copies of a model read images in one way."""
        return self

    def save(self, folder: Path) -> None:
        """Write the processor beside a model's tokenizer."""
        if self.files is None:
            self.processor.save_pretrained(folder)
        for name, content in (self.files or {}).items():
            (folder / name).write_bytes(content)

    def tokens(self, digest: str) -> list[int]:
        """Token ids of an image in a row, with what its family puts around it."""
        return self._make(digest)[0]

    def short(self) -> list[int]:
        """Token ids of an image before a processor makes its places of them."""
        return list(self.processor.tokenizer(self.placeholder, add_special_tokens=False)["input_ids"])

    def tensors(self, digest: str) -> dict[str, Any]:
        """What the model's vision tower takes of an image: tensors by name, as its processor makes them of one image."""
        return self._make(digest)[1]

    def _make(self, digest: str) -> tuple[list[int], dict[str, Any], int]:
        if digest in self._processed:
            self._processed.move_to_end(digest)
            return self._processed[digest]
        image = IMAGES.image(digest)
        try:
            inputs = self.processor(
                text=[self.placeholder], images=[[image]], return_tensors="pt", add_special_tokens=False
            )
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise ImageError(
                f"the model's image processor refuses an image of {image.width} x {image.height} pixels ({first})",
                fix="Leave the image out, or make it larger.",
            ) from error
        ids = inputs.pop("input_ids")[0].tolist()
        tensors = {name: value for name, value in inputs.items() if name not in _OF_TOKENS}
        places = iter(place_ids(digest, ids.count(self.image_token)))
        tokens = [next(places) if token == self.image_token else token for token in ids]
        if not any(token >= FIRST_ID for token in tokens):
            raise ModelError(
                "model.path",
                f"the processor writes {self.placeholder!r} for an image, and no token {self.processor.image_token!r}",
                "Take the model's own tokenizer and processor.",
            )
        size = sum(value.numel() * value.element_size() for value in tensors.values())
        self._processed[digest] = tokens, tensors, size
        self._bytes += size
        while self._bytes > KEPT_BYTES and len(self._processed) > 1:
            self._bytes -= self._processed.popitem(last=False)[1][2]
        return self._processed[digest]


_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
