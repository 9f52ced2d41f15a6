//! Packed weights: mapped from a cache file, or packed now and left in the cache for the next time.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapMut};
use op_dbus_graph::encoder::Encoder;
use op_dbus_graph::kept::{self, Kind, use_now};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kernels::Layout;
use crate::maxima::Maxima;
use crate::pack::pack;
use crate::plan::{Plan, Shape};

/// Version of the packed form. A cached file of another version is never read.
const VERSION: u32 = 8;

/// First bytes of a cache file.
const MAGIC: &[u8; 16] = b"op-dbus weights\n";

/// The header ends here and the weights begin; a multiple of every page's cache lines.
const HEADER_BYTES: usize = 4096;

/// Packed weights in the cache.
const WEIGHTS: Kind = Kind { finished: "packed", unfinished: ".packing-", kept: 12 };

/// What the header of a cache file says.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    key: String,
    shape: Shape,
    sha256: String,
}

/// Where a model's packed weights are kept.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    /// Everything that decides what the weights are, and their layout.
    key: String,
}

impl Place {
    pub fn new(cache_dir: &Path, key: &str, layout: Layout) -> Self {
        let Layout { weight, panel, step, .. } = layout;
        let key = format!("{key} weights={weight:?} panel={panel} step={step}");
        Self { folder: cache_dir.join("weights"), key }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.{}", hex(&self.key), WEIGHTS.finished))
    }

    /// Waits until nobody else packs weights of this model, and keeps others from it until what is returned goes, be
    /// it that the process is killed; nothing where the folder can't be made or locked.
    pub fn lock(&self) -> Option<File> {
        kept::lock(&self.folder)
    }
}

/// The packed weights of one model.
#[derive(Debug)]
pub(crate) struct Packed {
    pub shape: Shape,
    pub plan: Plan,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// A cache file, header included.
    File(Mmap),
    /// Memory of our own.
    Memory(MmapMut),
}

impl Packed {
    /// Maps the weights of `place`; nothing if there are none.
    ///
    /// # Errors
    /// The file can't be read, or is not what it should be.
    pub fn open(place: &Place, layout: Layout) -> io::Result<Option<Self>> {
        let Some(mut file) = kept::open(&place.path())? else { return Ok(None) };
        let damaged = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut head = [0; HEADER_BYTES];
        file.read_exact(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it has no header"),
            _ => error,
        })?;
        let json = head.strip_prefix(MAGIC).ok_or_else(|| damaged("it has no header"))?;
        let json = json.split(|&byte| byte == 0).next().unwrap_or_default();
        let header: Header =
            serde_json::from_slice(json).map_err(|_| damaged("its header can't be read"))?;
        if header.version != VERSION || header.key != place.key {
            return Err(damaged("it belongs to other weights"));
        }
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX) - HEADER_BYTES;
        let plan = Plan::new(&header.shape, layout, length);
        let plan = plan.ok_or_else(|| damaged("its sizes make no sense, or exceed the file"))?;
        if length != plan.bytes {
            return Err(damaged("it has not the length that its header promises"));
        }
        // Read, not mapped: of a block that the disk can't read that tells, where a page of it would end the process.
        if digest(&header.shape, &file)? != header.sha256 {
            return Err(damaged("its checksum is wrong"));
        }
        // SAFETY: `kept::open` has seen on this descriptor that nobody may write the file but its owner, who is
        // root, this user or the folder's owner. Of these only workers of this very model do, and every writer of
        // ours makes a new file and renames it; nothing shortens or changes one that is mapped. Another of
        // them could, once the model has taken it over, which would have this one just as well. What it
        // could have this one do is bounded by what this one may. The bytes are read as numbers alone, for
        // which every pattern is valid. Each has just been read: one that memory let go of since, and the disk
        // can't give again, ends the process, and the next one packs anew.
        let map = unsafe { Mmap::map(&file)? };
        if map.len() != HEADER_BYTES + plan.bytes {
            return Err(damaged("it has not the length that its header promises"));
        }
        use_now(&file);
        Ok(Some(Self { shape: header.shape, plan, bytes: Bytes::File(map) }))
    }

    /// Packs `encoder`.
    ///
    /// # Errors
    /// The memory can't be had, or the sizes exceed all memory.
    pub fn build(
        encoder: &Encoder<'_>,
        layout: Layout,
        maxima: Option<&Maxima>,
    ) -> io::Result<Self> {
        let shape = Shape::of(encoder);
        let plan = Plan::new(&shape, layout, isize::MAX.unsigned_abs()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the model's sizes make no sense")
        })?;
        let mut map = MmapMut::map_anon(plan.bytes)?;
        pack(encoder, &plan, layout, maxima, &mut map);
        Ok(Self { shape, plan, bytes: Bytes::Memory(map) })
    }

    /// Writes the weights to their place, whole or not at all.
    ///
    /// # Errors
    /// The folder can't be written, or is full.
    pub fn save(&self, place: &Place) -> io::Result<()> {
        let header = Header {
            version: VERSION,
            key: place.key.clone(),
            shape: self.shape.clone(),
            sha256: digest(&self.shape, self.bytes())?,
        };
        let mut head = MAGIC.to_vec();
        serde_json::to_writer(&mut head, &header)?;
        if head.len() >= HEADER_BYTES {
            return Err(io::Error::other("the header of the packed weights is too long"));
        }
        head.resize(HEADER_BYTES, 0);
        WEIGHTS.make(&place.path(), |file| {
            file.write_all(&head)?;
            file.write_all(self.bytes())
        })
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::File(map) => &map[HEADER_BYTES..],
            Bytes::Memory(map) => map,
        }
    }

    /// The bytes of one part.
    pub fn part(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes()[range.clone()]
    }

    /// One part as 32-bit floats.
    pub fn floats(&self, range: &Range<usize>) -> &[f32] {
        bytemuck::cast_slice(self.part(range))
    }
}

/// Of the weights, and of what they are taken for.
fn digest(shape: &Shape, weights: impl Read) -> io::Result<String> {
    let mut digest = Sha256::new_with_prefix(serde_json::to_vec(shape)?);
    io::copy(&mut BufReader::with_capacity(1 << 20, weights), &mut digest)?;
    Ok(format!("{:x}", digest.finalize()))
}

fn hex(key: &str) -> String {
    format!("{:x}", Sha256::digest(key.as_bytes()))[..32].to_owned()
}
