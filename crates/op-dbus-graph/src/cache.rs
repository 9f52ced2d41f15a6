//! Compiled graphs on disk: found again by everything that decides their content, verified by
//! digest on every read, rebuilt when anything is off, and never a reason to fail.

use std::io::{self, Read, Write};
use std::path::Path;

use serde::Serialize;
use sha2::digest::Output;
use sha2::{Digest, Sha256};

use crate::kept::{self, Kind, use_now};
use crate::{COMPILER_VERSION, Family, Recipe};

/// The graphs in the cache.
const GRAPHS: Kind = Kind { finished: "graph", unfinished: ".building-", kept: 12 };

/// Bytes behind the graph in an entry: the SHA-256 of key and graph.
const SEAL_BYTES: usize = 32;

/// Everything that decides the content of a compiled graph. The compiler's version is added by the
/// cache itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheKey {
    /// SHA-256 of the weights file, 64 hex digits.
    pub weights_sha256: String,
    /// SHA-256 of `config.json`, 64 hex digits.
    pub config_sha256: String,
    /// SHA-256 of `config.json` and of the weights of each Dense module, 64 hex digits each.
    pub dense_sha256: Vec<[String; 2]>,
    /// Encoder architecture.
    pub family: Family,
    /// What the graph computes beside these files.
    pub recipe: Recipe,
}

impl CacheKey {
    /// Digest of the key and the compiler's version.
    fn digest(&self) -> Output<Sha256> {
        let text = serde_json::to_vec(&(COMPILER_VERSION, self))
            .expect("a key is plain strings, numbers and unit variants");
        Sha256::digest(text)
    }
}

/// The graph for `key` from the folder `dir`, which is made when something is first written: read, or compiled
/// and kept. Tells whether it was compiled.
///
/// An entry that is missing, damaged, cut short or of another compiler version is compiled again and
/// replaced. A folder that can't be written, or is full, costs a warning.
///
/// # Errors
/// Only those of `compile`.
pub fn load_or_compile<E>(
    dir: &Path,
    key: &CacheKey,
    compile: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<(Vec<u8>, bool), E> {
    let digest = key.digest();
    let path = dir.join(format!("{digest:x}.graph"));
    match read(&path, &digest) {
        Ok(Some(graph)) => return Ok((graph, false)),
        Ok(None) => {}
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "the cached graph can't be used; compiling it again");
        }
    }
    let graph = compile()?;
    if let Err(error) = write(&path, &digest, &graph) {
        let path = path.display();
        tracing::warn!(%path, %error, "the compiled graph can't be kept for the next start");
    }
    Ok((graph, true))
}

fn write(path: &Path, key: &[u8], graph: &[u8]) -> io::Result<()> {
    GRAPHS.make(path, |file| {
        file.write_all(graph)?;
        file.write_all(&seal(key, graph))
    })
}

/// What an entry holds; nothing if there is none.
fn read(path: &Path, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let Some(mut file) = kept::open(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let damaged = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
    let graph_bytes = bytes.len().checked_sub(SEAL_BYTES).ok_or_else(|| damaged("cut short"))?;
    let (graph, found) = bytes.split_at(graph_bytes);
    if *seal(key, graph) != *found {
        return Err(damaged("its digest is wrong"));
    }
    bytes.truncate(graph_bytes);
    use_now(&file);
    Ok(Some(bytes))
}

/// Digest over key and graph, so that an entry under another entry's name is noticed as well.
fn seal(key: &[u8], graph: &[u8]) -> Output<Sha256> {
    Sha256::new().chain_update(key).chain_update(graph).finalize()
}
