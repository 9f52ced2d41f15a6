//! The certificates that servers are to be certified by, out of a file that people have put together.

use ureq::tls::{PemItem, parse_pem};

/// How a block of a file in PEM form begins.
const BEGIN: &str = "-----BEGIN ";

/// The blocks of a file in PEM form that are certificates. One that is damaged is left out, which the journal is
/// told: one client would pass it over without a word, and another could not reach a single server.
///
/// # Errors
/// A clause: there is none.
pub fn readable(pem: &[u8]) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(pem);
    let (mut whole, mut damaged) = (String::new(), 0);
    // What an editor has put before the first one is not part of it.
    for block in text.split(BEGIN).skip(1).map(|rest| format!("{BEGIN}{rest}")) {
        let mut items = parse_pem(block.as_bytes());
        if items.any(|item| matches!(item, Ok(PemItem::Certificate(_)))) {
            whole.push_str(&block);
        } else if block[BEGIN.len()..].starts_with("CERTIFICATE") {
            damaged += 1;
        }
    }
    if whole.is_empty() {
        return Err("there is no certificate in PEM form in it".to_owned());
    }
    if damaged > 0 {
        tracing::warn!(damaged, "ca_file has certificates that can't be read, and are not used");
    }
    Ok(whole.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";

    #[test]
    fn what_is_whole_is_used_and_what_is_damaged_is_left_out() {
        let damaged = BLOCK.replace('a', "!");
        let cut = &BLOCK[..40];
        let key = BLOCK.replace("CERTIFICATE", "PRIVATE KEY");
        for (file, whole) in [
            (format!("{BLOCK}{BLOCK}"), 2),
            (format!("\u{feff}{BLOCK}"), 1),
            (format!("{damaged}{BLOCK}"), 1),
            (format!("{BLOCK}{damaged}{BLOCK}"), 2),
            (format!("{BLOCK}{key}{cut}"), 1),
        ] {
            let found = readable(file.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), BLOCK.repeat(whole), "{file}");
        }
        for none in ["", "hello", &damaged, &key, cut] {
            let refused = readable(none.as_bytes()).unwrap_err();
            assert_eq!(refused, "there is no certificate in PEM form in it");
        }
    }
}
