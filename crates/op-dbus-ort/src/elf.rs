//! A look at a shared library before the dynamic linker takes it: the linker's own words for a
//! library of another machine are hard to understand, and one that was cut short kills the process.

use std::io::{self, Read, Seek, SeekFrom};

/// Bytes of an ELF header.
const HEADER_BYTES: usize = 64;
/// Bytes of one entry of the table of segments.
const SEGMENT_BYTES: usize = 56;

/// What speaks against a library, in words that follow "the file is"; nothing if it may be tried. Reads the
/// tables alone, as libraries have hundreds of megabytes.
pub(crate) fn problem(file: &mut (impl Read + Seek)) -> io::Result<Option<String>> {
    let header = part(file, 0, HEADER_BYTES)?;
    let (Some(b"\x7fELF"), Some(&[low, high])) = (header.get(..4), header.get(18..20)) else {
        return Ok(Some("not a shared library".to_owned()));
    };
    let big_endian = header[5] == 2;
    let machine =
        if big_endian { u16::from_be_bytes([low, high]) } else { u16::from_le_bytes([low, high]) };
    let (found, expected) = (architecture(machine), std::env::consts::ARCH);
    if found != expected {
        return Ok(Some(format!("a library for {found}, but this program needs {expected}")));
    }
    let readable = cfg!(all(target_pointer_width = "64", target_endian = "little"));
    let is_whole = !readable || {
        let length = file.seek(SeekFrom::End(0))?;
        extent(file, &header)?.is_some_and(|end| end <= length)
    };
    Ok((!is_whole).then(|| "a library that was cut short".to_owned()))
}

/// Where the last segment ends, in bytes; nothing if the tables themselves are not whole.
fn extent(file: &mut (impl Read + Seek), header: &[u8]) -> io::Result<Option<u64>> {
    let (Some(start), Some(&[low, high])) = (number(header, 32), header.get(56..58)) else {
        return Ok(None);
    };
    let bytes = usize::from(u16::from_le_bytes([low, high])) * SEGMENT_BYTES;
    let table = part(file, start, bytes)?;
    if table.len() < bytes {
        return Ok(None);
    }
    let end = |segment: &[u8]| number(segment, 8)?.checked_add(number(segment, 32)?);
    let mut ends = table.chunks_exact(SEGMENT_BYTES).map(end);
    Ok(ends.try_fold(0, |most, end| Some(end?.max(most))))
}

/// The number at `start` of a table, if it is that long.
fn number(table: &[u8], start: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*table.get(start..)?.first_chunk()?))
}

/// What there is of so many bytes from `start` on.
fn part(file: &mut (impl Read + Seek), start: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    // No file goes on behind what its offsets can say.
    if i64::try_from(start).is_ok() {
        file.seek(SeekFrom::Start(start))?;
        file.take(bytes as u64).read_to_end(&mut part)?;
    }
    Ok(part)
}

/// Name, as in [`std::env::consts::ARCH`], of an ELF machine number.
fn architecture(machine: u16) -> String {
    let known = match machine {
        3 => "x86",
        21 => "powerpc64",
        22 => "s390x",
        40 => "arm",
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv64",
        258 => "loongarch64",
        _ => return format!("machine {machine}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn problem_of(file: &[u8]) -> Option<String> {
        problem(&mut Cursor::new(file)).unwrap()
    }

    fn whole() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    /// Counts what is read.
    struct Counted(Cursor<Vec<u8>>, usize);

    impl Read for Counted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(buffer)?;
            self.1 += read;
            Ok(read)
        }
    }

    impl Seek for Counted {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn a_library_of_another_machine_is_told_by_both_names() {
        assert_eq!(problem_of(b"").as_deref(), Some("not a shared library"));
        assert_eq!(problem_of(b"not ELF at all, but long enough"), problem_of(b""));
        let foreign: u16 = if cfg!(target_arch = "s390x") { 62 } else { 22 };
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(18, 0);
        file.extend_from_slice(&foreign.to_le_bytes());
        let problem = problem_of(&file).unwrap();
        assert!(problem.contains(std::env::consts::ARCH), "{problem}");
        assert!(problem.contains(&architecture(foreign)), "{problem}");
    }

    #[test]
    fn a_whole_library_passes_and_every_cut_one_is_refused() {
        let whole = whole();
        assert_eq!(problem_of(&whole), None);
        let last = extent(&mut Cursor::new(&whole), &whole).unwrap().unwrap() as usize;
        for bytes in [0, 19, 20, 63, 64, 100, last / 2, last - 1] {
            assert!(problem_of(&whole[..bytes]).is_some(), "{bytes}");
        }
    }

    /// Wherever these are, as tools that change a library may put them at its end.
    #[test]
    fn the_tables_are_all_that_is_read() {
        let mut file = whole();
        let bytes = usize::from(u16::from_le_bytes([file[56], file[57]])) * SEGMENT_BYTES;
        let (start, end) = (number(&file, 32).unwrap() as usize, file.len() as u64);
        file.extend_from_within(start..start + bytes);
        file[start..start + bytes].fill(0xff);
        file[32..40].copy_from_slice(&end.to_le_bytes());
        let mut file = Counted(Cursor::new(file), 0);
        assert_eq!(problem(&mut file).unwrap(), None);
        assert_eq!(file.1, HEADER_BYTES + bytes);
    }

    #[test]
    fn tables_that_point_anywhere_are_refused() {
        let whole = whole();
        for field in [32..40, HEADER_BYTES + 8..HEADER_BYTES + 16, HEADER_BYTES + 32..104] {
            let mut file = whole.clone();
            file[field].fill(0xff);
            assert!(problem_of(&file).is_some());
        }
    }
}
