//! Packed weights: mapped from a cache file, or packed now and left in the cache for the next time.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::{Mmap, MmapMut};
use op_dbus_graph::encoder::Encoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kernels::Layout;
use crate::pack::pack;
use crate::plan::{Plan, Shape};
use crate::reach::Reaches;

/// Version of the packed form. A cached file of another version is never read.
const VERSION: u32 = 6;

/// First bytes of a cache file.
const MAGIC: &[u8; 16] = b"op-dbus weights\n";

/// The header ends here and the weights begin; a multiple of every page's cache lines.
const HEADER_BYTES: usize = 4096;

/// Files of packed weights that are kept, those that were used last: of a model that is imported again and
/// again, the cache would else hold every version.
const KEPT_MAX: usize = 12;

/// How the names of files end that are whole.
const FINISHED: &str = "packed";

/// How the names of files begin that are still being written.
const UNFINISHED: &str = ".packing-";

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
    /// Everything that decides what the weights are, but their layout.
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
        self.folder.join(format!("{}.{FINISHED}", hex(&self.key)))
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

/// Why packed weights can't be had from the cache.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Miss {
    /// There are none.
    #[error("there are none")]
    Absent,
    /// The file can't be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not what it should be.
    #[error("{0}")]
    Damaged(&'static str),
}

impl Packed {
    /// Maps the weights of `place`.
    ///
    /// # Errors
    /// There is no such file, or it is not whole.
    pub fn open(place: &Place, layout: Layout) -> Result<Self, Miss> {
        let file = match File::open(place.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Miss::Absent),
            file => file?,
        };
        // SAFETY: the file lies in a folder that only this service writes, and every writer of ours
        // makes a new file and renames it; nothing shortens or changes one that is mapped. Its bytes
        // are read as numbers alone, for which every pattern is valid.
        let map = unsafe { Mmap::map(&file)? };
        let header = map.get(..HEADER_BYTES).and_then(|bytes| bytes.strip_prefix(MAGIC));
        let header = header.ok_or(Miss::Damaged("it has no header"))?;
        let json = header.split(|&byte| byte == 0).next().unwrap_or_default();
        let header: Header =
            serde_json::from_slice(json).map_err(|_| Miss::Damaged("its header can't be read"))?;
        if header.version != VERSION || header.key != place.key {
            return Err(Miss::Damaged("it belongs to other weights"));
        }
        let plan = Plan::new(&header.shape, layout);
        let plan = plan.ok_or(Miss::Damaged("its sizes make no sense"))?;
        let weights = &map[HEADER_BYTES..];
        if weights.len() != plan.bytes {
            return Err(Miss::Damaged("it has not the length that its header promises"));
        }
        if digest(weights) != header.sha256 {
            return Err(Miss::Damaged("its checksum is wrong"));
        }
        // Used last; where that can't be noted, it is as old as it is.
        let _ = file.set_modified(SystemTime::now());
        Ok(Self { shape: header.shape, plan, bytes: Bytes::File(map) })
    }

    /// Packs `encoder`; nothing if there is no memory for it.
    ///
    /// # Errors
    /// The memory can't be had, or the sizes exceed all memory.
    pub fn build(
        encoder: &Encoder<'_>,
        layout: Layout,
        reaches: Option<&Reaches>,
    ) -> io::Result<Self> {
        let shape = Shape::of(encoder);
        let plan = Plan::new(&shape, layout).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the model's sizes make no sense")
        })?;
        let mut map = MmapMut::map_anon(plan.bytes)?;
        pack(encoder, &plan, layout, reaches, &mut map);
        Ok(Self { shape, plan, bytes: Bytes::Memory(map) })
    }

    /// Writes the weights to their place, whole or not at all.
    ///
    /// # Errors
    /// The folder can't be written, or is full.
    pub fn save(&self, place: &Place) -> io::Result<()> {
        fs::create_dir_all(&place.folder)?;
        sweep(&place.folder);
        let header = Header {
            version: VERSION,
            key: place.key.clone(),
            shape: self.shape.clone(),
            sha256: digest(self.bytes()),
        };
        let mut head = MAGIC.to_vec();
        serde_json::to_writer(&mut head, &header)?;
        if head.len() >= HEADER_BYTES {
            return Err(io::Error::other("the header of the packed weights is too long"));
        }
        head.resize(HEADER_BYTES, 0);
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&place.folder)?;
        // Held until the file has its name: by this others know that it is being written. Where
        // there are no locks, one that packs at the same time may cost us the file.
        let _ = file.as_file().try_lock();
        file.write_all(&head)?;
        file.write_all(self.bytes())?;
        file.as_file().sync_all()?;
        file.persist(place.path())?;
        forget(&place.folder);
        Ok(())
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

/// Removes what writers that were killed have left: files that nobody holds a lock on any more.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let unfinished = entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
        if unfinished && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            // What can't be removed stays for the next one.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes those that were not used for the longest. Who has one mapped keeps it.
fn forget(folder: &Path) {
    let finished = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let path = entry.path();
        let whole = path.extension().is_some_and(|extension| extension == FINISHED);
        whole.then(|| Some((entry.metadata().ok()?.modified().ok()?, path)))?
    });
    let mut finished: Vec<_> = finished.collect();
    finished.sort_unstable();
    let surplus = finished.len().saturating_sub(KEPT_MAX);
    for (_, path) in &finished[..surplus] {
        // What can't be removed stays for the next one.
        let _ = fs::remove_file(path);
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn hex(key: &str) -> String {
    digest(key.as_bytes())[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn weights_that_nobody_uses_any_more_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for age in 0..KEPT_MAX as u64 + 2 {
            let file = File::create(path(&format!("{age}.{FINISHED}"))).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age * 60)).unwrap();
        }
        fs::write(path("other"), "").unwrap();
        forget(folder.path());
        let is_there = |age: usize| path(&format!("{age}.{FINISHED}")).exists();
        assert!((0..KEPT_MAX).all(is_there) && path("other").exists());
        assert!(!is_there(KEPT_MAX) && !is_there(KEPT_MAX + 1));
    }
}
