//! A look at a shared library before the dynamic linker takes it: the linker's own words for a
//! library of another machine are hard to understand, and one that was cut short kills the process.

/// Bytes of an ELF header.
const HEADER_BYTES: usize = 64;
/// Bytes of one entry of the table of segments.
const SEGMENT_BYTES: usize = 56;

/// What speaks against a library that holds `file`, in words that follow "the file is"; nothing if
/// it may be tried.
pub(crate) fn problem(file: &[u8]) -> Option<String> {
    let (Some(b"\x7fELF"), Some(&[low, high])) = (file.get(..4), file.get(18..20)) else {
        return Some("not a shared library".to_owned());
    };
    let big_endian = file[5] == 2;
    let machine =
        if big_endian { u16::from_be_bytes([low, high]) } else { u16::from_le_bytes([low, high]) };
    let (found, expected) = (architecture(machine), std::env::consts::ARCH);
    if found != expected {
        return Some(format!("a library for {found}, but this program needs {expected}"));
    }
    let readable = cfg!(all(target_pointer_width = "64", target_endian = "little"));
    (readable && extent(file).is_none_or(|bytes| bytes > file.len()))
        .then(|| "a library that was cut short".to_owned())
}

/// Where the last segment ends, in bytes; nothing if the tables themselves are not whole.
fn extent(file: &[u8]) -> Option<usize> {
    let header = file.get(..HEADER_BYTES)?;
    let start = number(&header[32..40])?;
    let count = usize::from(u16::from_le_bytes([header[56], header[57]]));
    let table = file.get(start..start.checked_add(count * SEGMENT_BYTES)?)?;
    let end = |segment: &[u8]| number(&segment[8..16])?.checked_add(number(&segment[32..40])?);
    table.chunks_exact(SEGMENT_BYTES).map(end).try_fold(0, |most, end| Some(end?.max(most)))
}

fn number(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()
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
    use super::*;

    #[test]
    fn a_library_of_another_machine_is_told_by_both_names() {
        assert_eq!(problem(b"").as_deref(), Some("not a shared library"));
        assert_eq!(problem(b"not ELF at all, but long enough").as_deref(), problem(b"").as_deref());
        let foreign: u16 = if cfg!(target_arch = "s390x") { 62 } else { 22 };
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(18, 0);
        file.extend_from_slice(&foreign.to_le_bytes());
        let problem = problem(&file).unwrap();
        assert!(problem.contains(std::env::consts::ARCH), "{problem}");
        assert!(problem.contains(&architecture(foreign)), "{problem}");
    }

    #[test]
    fn a_whole_library_passes_and_every_cut_one_is_refused() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(problem(&whole), None);
        let last = extent(&whole).unwrap();
        for bytes in [0, 19, 20, 63, 64, 100, last / 2, last - 1] {
            assert!(problem(&whole[..bytes]).is_some(), "{bytes}");
        }
    }

    #[test]
    fn tables_that_point_anywhere_are_refused() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for field in [32..40, HEADER_BYTES + 8..HEADER_BYTES + 16, HEADER_BYTES + 32..104] {
            let mut file = whole.clone();
            file[field].fill(0xff);
            assert!(problem(&file).is_some());
        }
    }
}
