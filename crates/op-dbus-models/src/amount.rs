//! How much there is in a JSON text, counted before a parser begins: what takes two bytes there becomes some hundred.
//! op-dbus-engine compiles this file as its own.

/// Values of a text, each of which the parser takes some 100 to 300 bytes for. Gemma's 262,144 pieces and
/// 514,906 merges are 1.9 million of them; XLM-R's 250,002 pieces with their scores are 0.8 million.
pub(crate) const VALUES_MAX: usize = 2_400_000;
/// Objects among these, each of which may take a kilobyte while it is parsed. Models have one for each added
/// token, of which there are some thousands.
pub(crate) const OBJECTS_MAX: usize = 1 << 16;

/// What a text has more of than any model's: how many of what, and how many there may be.
pub(crate) fn excess(json: &[u8]) -> Option<(String, usize)> {
    // Those within strings are counted as well, and are few.
    let count = |of: &[u8]| json.iter().filter(|byte| of.contains(byte)).count();
    let (values, objects) = (count(b",[{"), count(b"{"));
    let kinds = [(values, VALUES_MAX, "JSON values"), (objects, OBJECTS_MAX, "JSON objects")];
    let (found, most, what) = kinds.into_iter().find(|(found, most, _)| found > most)?;
    Some((format!("{found} {what}"), most))
}
