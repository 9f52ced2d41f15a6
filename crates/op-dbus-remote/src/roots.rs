//! The certificates that servers are to be certified by, out of a file that people have put together.

use ureq::tls::{Certificate, PemItem, parse_pem};

/// How a block of a file in PEM form begins.
const BEGIN: &str = "-----BEGIN ";

/// The blocks of a file in PEM form that are certificates. One that is damaged is left out, which the journal is
/// told: clients would pass it over without a word, or could not reach a single server, by where the damage is.
///
/// # Errors
/// A clause: there is none.
pub fn readable(pem: &[u8]) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(pem);
    let (mut whole, mut damaged) = (String::new(), 0);
    // What an editor has put before the first one is not part of it.
    for block in text.split(BEGIN).skip(1).map(|rest| format!("{BEGIN}{rest}")) {
        let mut items = parse_pem(block.as_bytes());
        if items.any(|item| matches!(item, Ok(PemItem::Certificate(one)) if is_whole(&one))) {
            whole.push_str(&block);
        } else if block[BEGIN.len()..].starts_with("CERTIFICATE") {
            damaged += 1;
        }
    }
    if whole.is_empty() {
        return Err("there is no certificate in PEM form in it that is whole".to_owned());
    }
    if damaged > 0 {
        tracing::warn!(damaged, "ca_file has certificates that can't be read, and are not used");
    }
    Ok(whole.into_bytes())
}

/// Whether what is in a block is a certificate as well: where a line of it is lost, it is still in PEM form.
fn is_whole(certificate: &Certificate<'_>) -> bool {
    webpki::anchor_from_trusted_cert(&certificate.der().into()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "-----BEGIN CERTIFICATE-----
MIIBhjCCAS2gAwIBAgIULuhr2kEfuLNtt78rd41WavpoWKcwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNb3VyIGF1dGhvcml0eTAgFw0yNjExMzAyMDQ0NDBaGA8yMTI2
MTEwNjIwNDQ0MFowGDEWMBQGA1UEAwwNb3VyIGF1dGhvcml0eTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABCXB0i/ysNGXiqkxN5IoJx8qYOda1msuaOQetdKMoo4V
KxJkeOUEove9pMy26B92fj4DzEckjOiwDDLjqQvw6gejUzBRMB0GA1UdDgQWBBT+
phTlqCp/UHdkrOeyDOrlsqa6sTAfBgNVHSMEGDAWgBT+phTlqCp/UHdkrOeyDOrl
sqa6sTAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCIDPmNKdRWduX
3kTYR+3LhutLiq1dNM5uGFEjiAF+d/XpAiA67L+Uq1Ov0NttiNYnWz/jHBRYJrok
4+6AoP//L+ar6Q==
-----END CERTIFICATE-----
";

    #[test]
    fn what_is_whole_is_used_and_what_is_damaged_is_left_out() {
        let damaged = BLOCK.replace('a', "!");
        let lines: Vec<&str> = BLOCK.split_inclusive('\n').collect();
        let shorter = [&lines[..2], &lines[3..]].concat().concat();
        let cut = &BLOCK[..40];
        let key = BLOCK.replace("CERTIFICATE", "PRIVATE KEY");
        for (file, whole) in [
            (format!("{BLOCK}{BLOCK}"), 2),
            (format!("\u{feff}{BLOCK}"), 1),
            (format!("{damaged}{BLOCK}"), 1),
            (format!("{BLOCK}{damaged}{BLOCK}"), 2),
            (format!("{BLOCK}{shorter}{BLOCK}"), 2),
            (format!("{BLOCK}{key}{cut}"), 1),
        ] {
            let found = readable(file.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), BLOCK.repeat(whole), "{file}");
        }
        for none in ["", "hello", &damaged, &shorter, &key, cut] {
            let refused = readable(none.as_bytes()).unwrap_err();
            assert_eq!(refused, "there is no certificate in PEM form in it that is whole");
        }
    }
}
