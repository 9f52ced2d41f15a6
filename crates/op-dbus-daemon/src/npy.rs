//! The header of NumPy's file format, of one length whatever the shape: it can be written last.

/// Bytes of the header, padding included; the format wants a multiple of 64.
pub const HEADER_BYTES: usize = 128;

/// The header of an npy file, version 1.0: a C-ordered matrix `[rows, columns]` of elements that
/// NumPy names `element`, such as `<f4`.
pub fn header(element: &str, rows: u64, columns: usize) -> [u8; HEADER_BYTES] {
    let mut header = [b' '; HEADER_BYTES];
    header[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    header[8..10].copy_from_slice(&(HEADER_BYTES as u16 - 10).to_le_bytes());
    let dictionary =
        format!("{{'descr': '{element}', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    header[10..10 + dictionary.len()].copy_from_slice(dictionary.as_bytes());
    header[HEADER_BYTES - 1] = b'\n';
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_element_and_shape() {
        let header = header("<f4", 4, 2);
        assert_eq!(&header[..10], b"\x93NUMPY\x01\x00\x76\x00");
        let text = std::str::from_utf8(&header[10..]).unwrap();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }  "));
        assert!(text.ends_with(" \n"));
    }

    #[test]
    fn the_longest_header_fits() {
        assert!(header("<f4", u64::MAX, usize::MAX).ends_with(b" \n"));
    }
}
