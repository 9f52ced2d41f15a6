//! What a safetensors file says about itself, and the same file with 32-bit floats.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::config_files::check_amount;
use crate::error::refuse;
use crate::{Error, digest, staging};

/// The largest header that is read.
const HEADER_BYTES_MAX: u64 = 100 << 20;

/// Reads the header and proves that every tensor lies inside the file and nothing else does.
pub(crate) fn read_header(dir: &Path, name: &str) -> Result<Metadata, Error> {
    let path = &dir.join(name);
    let fail = |error| Error::io("read", path, error);
    let broken = |found: String| {
        refuse(
            format!("a {name} that is not a whole safetensors file ({found})"),
            format!("an undamaged {name}; fetch or copy it again"),
        )
    };
    let mut file = File::open(path).map_err(fail)?;
    let bytes = file.metadata().map_err(fail)?.len();
    let mut length = [0; 8];
    if bytes < 8 {
        return Err(broken(format!("it has {bytes} bytes")));
    }
    file.read_exact(&mut length).map_err(fail)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX || length > bytes - 8 {
        return Err(broken(format!("its header says that it has {length} bytes")));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(fail)?;
    check_amount(&header, &format!("the header of {name}"))?;
    // Deserializing proves that the tensors follow each other without gap or overlap, and that
    // each has the size of its shape.
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| broken(error.to_string()))?;
    let data = bytes - 8 - length;
    if header.data_len() as u64 != data {
        let stated = header.data_len();
        return Err(broken(format!("{data} bytes of numbers, and the header states {stated}")));
    }
    Ok(header)
}

/// How many blocks the weights have: one more than the largest number that a name has for its layer.
pub(crate) fn layers(header: &Metadata) -> usize {
    let tensors = header.tensors();
    let numbers = tensors.keys().filter_map(|name| {
        let (_, rest) = name.split_once("layer.")?;
        rest.split('.').next()?.parse::<usize>().ok()
    });
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

/// Makes 32-bit floats of a file's 16-bit ones, which loses nothing. Returns its new size and
/// SHA-256; nothing where there are no such floats and the file was left alone.
pub(crate) fn widen(dir: &Path, name: &str) -> Result<Option<(u64, String)>, Error> {
    let header = read_header(dir, name)?;
    if !header.tensors().values().any(|tensor| is_half(tensor.dtype)) {
        return Ok(None);
    }
    let path = dir.join(name);
    let fail = |error| Error::io("write", &path, error);
    let wide = path.with_extension("wide");
    let mut to = BufWriter::new(staging::create(&wide)?);
    write_wide(&path, &header, &mut to).map_err(fail)?;
    let file = to.into_inner().map_err(|error| fail(error.into_error()))?;
    file.sync_all().map_err(fail)?;
    std::fs::rename(&wide, &path).map_err(fail)?;
    let bytes = file.metadata().map_err(fail)?.len();
    Ok(Some((bytes, digest::of_file(&path)?)))
}

fn is_half(element: Dtype) -> bool {
    matches!(element, Dtype::F16 | Dtype::BF16)
}

/// The tensors of a file, in the order in which they lie there.
fn in_order(header: &Metadata) -> impl Iterator<Item = (String, &TensorInfo)> {
    let names = header.offset_keys().into_iter();
    names.filter_map(move |name| header.info(&name).map(|tensor| (name, tensor)))
}

/// Writes the tensors of a file, in their order.
fn write_wide(path: &Path, header: &Metadata, to: &mut dyn Write) -> io::Result<()> {
    let (mut end, mut wide) = (0, Vec::new());
    for (name, tensor) in in_order(header) {
        let (start, bytes) = (end, tensor.data_offsets.1 - tensor.data_offsets.0);
        let half = is_half(tensor.dtype);
        end += if half { 2 * bytes } else { bytes };
        let dtype = if half { Dtype::F32 } else { tensor.dtype };
        let info = TensorInfo { dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
        wide.push((name, info));
    }
    // Without what else the file says of itself, so that equal weights get equal digests.
    let wide = Metadata::new(None, wide).map_err(io::Error::other)?;
    let mut text = serde_json::to_vec(&wide)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    to.write_all(&(text.len() as u64).to_le_bytes())?;
    to.write_all(&text)?;
    let mut from = File::open(path)?;
    let bytes = from.metadata()?.len();
    from.seek(SeekFrom::Start(bytes - header.data_len() as u64))?;
    let mut from = BufReader::new(from);
    in_order(header).try_for_each(|(_, tensor)| write_tensor(tensor, &mut from, to))
}

/// Writes the tensor that `from` goes on with.
fn write_tensor(tensor: &TensorInfo, from: &mut dyn Read, to: &mut dyn Write) -> io::Result<()> {
    let bytes = tensor.data_offsets.1 - tensor.data_offsets.0;
    let mut rest = from.take(bytes as u64);
    let value: fn([u8; 2]) -> f32 = match tensor.dtype {
        Dtype::F16 => |bytes| f16::from_le_bytes(bytes).to_f32(),
        Dtype::BF16 => |bytes| bf16::from_le_bytes(bytes).to_f32(),
        _ => return io::copy(&mut rest, to).map(drop),
    };
    for _ in 0..bytes / 2 {
        let mut element = [0; 2];
        rest.read_exact(&mut element)?;
        to.write_all(&value(element).to_le_bytes())?;
    }
    Ok(())
}
