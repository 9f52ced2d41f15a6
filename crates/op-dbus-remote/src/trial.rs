//! What every endpoint is tried with, and what it has to show.

use std::ops::Range;

use op_dbus_engine::{Batch, Reference, Tokenizer};

use crate::texts::Sent;

/// Ids that every vocabulary has, in rows of unequal length.
const IDS: [i32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const LENGTHS: [i32; 2] = [8, 4];
/// Those of them that stand for no end and no padding anywhere, of which rows of any length are made.
const PLAIN: &[i32] = IDS.split_at(3).1;

/// Special tokens around a text.
const SPECIALS: usize = 2;

/// What texts are tried with: two short ones of unequal length, and words of one token each, of which texts of
/// any length are made.
const SHORT: [&str; 2] = ["what others compute", "others"];
const WORDS: &str = "one red house stands by the old river and two green boats go to the sea ";
/// Least distance, as a part of its length, of the vector of a text of up to so many tokens and that of the
/// same text without its last one. Where a server cuts both to the same, there is none. Of a longer text
/// the last token is a smaller part.
const DISTANCE_MIN: f32 = 1e-4;
const DISTANCE_TOKENS: f32 = 512.0;

/// Batches that nobody has sent, and the vectors that an endpoint gave for them first. The last two rows
/// are as long as the model reads, and that without its last token, if there is such a row.
#[derive(Clone, Debug)]
pub struct Trial {
    parts: Vec<Part>,
    known: Vec<Reference>,
}

/// What is sent together: the short rows, or the long ones, for which there is more time.
#[derive(Clone, Debug)]
struct Part {
    ids: Vec<i32>,
    lengths: Vec<i32>,
    texts: Option<Vec<String>>,
}

impl Part {
    fn of(rows: &[Vec<i32>], texts: Option<Vec<String>>) -> Self {
        let length = |row: &Vec<i32>| i32::try_from(row.len()).unwrap_or(i32::MAX);
        Self { ids: rows.concat(), lengths: rows.iter().map(length).collect(), texts }
    }
}

impl Trial {
    /// A trial of endpoints that take token ids: short rows, one of as many ids as the model reads beside
    /// special tokens, which some servers add where they are missing, and that one without its last id.
    pub fn of_ids(max_input_tokens: usize) -> Self {
        let short = Part { ids: IDS.to_vec(), lengths: LENGTHS.to_vec(), texts: None };
        let most = max_input_tokens.saturating_sub(SPECIALS);
        let whole: Vec<i32> = PLAIN.iter().copied().cycle().take(most).collect();
        let shorter = whole.split_last().map(|(_, shorter)| shorter.to_vec()).unwrap_or_default();
        let long = (!shorter.is_empty()).then(|| Part::of(&[whole, shorter], None));
        Self { parts: [Some(short), long].into_iter().flatten().collect(), known: Vec::new() }
    }

    /// A trial of endpoints that take texts: short ones, one of as many tokens as the model reads, and that
    /// one without its last word.
    ///
    /// # Errors
    /// A clause: this tokenizer's ids do not become texts again.
    pub fn of_texts(tokenizer: &Tokenizer) -> Result<Self, String> {
        let trial = || {
            let whole = tokenizer.ids(&WORDS.repeat(tokenizer.max_input_tokens())).ok()?;
            let whole = tokenizer.text(&whole)?;
            let (shorter, _) = whole.rsplit_once(' ')?;
            let ids = |text: &str| tokenizer.ids(text).ok();
            let rows = [ids(SHORT[0])?, ids(SHORT[1])?, ids(&whole)?, ids(shorter)?];
            let texts: Vec<String> =
                rows.iter().map(|ids| tokenizer.text(ids)).collect::<Option<_>>()?;
            let part =
                |range: Range<usize>| Part::of(&rows[range.clone()], Some(texts[range].to_vec()));
            let parts = vec![part(0..SHORT.len()), part(SHORT.len()..rows.len())];
            Some(Self { parts, known: Vec::new() })
        };
        trial().ok_or_else(|| {
            "inputs is texts, and this model's tokenizer can't make texts of token ids; set inputs in \
             [providers.remote] to token-ids"
                .to_owned()
        })
    }

    /// What is sent, one after the other.
    pub fn sent(&self) -> impl Iterator<Item = Sent<'_>> {
        self.parts.iter().map(|Part { ids, lengths, texts }| Sent {
            batch: Batch { ids, lengths },
            texts: texts.as_deref(),
        })
    }

    /// Looks at what an endpoint cuts: `vectors` are those that it gave.
    ///
    /// # Errors
    /// A clause: it cuts what the model here reads.
    pub fn look(&self, vectors: &[f32], dimensions: usize) -> Result<(), String> {
        let rows: Vec<&[f32]> = vectors.chunks_exact(dimensions).collect();
        let is_long = self.parts.len() > 1;
        let ([.., whole, shorter], true) = (&rows[..], is_long) else { return Ok(()) };
        let most = self.parts.iter().flat_map(|part| &part.lengths).max().copied().unwrap_or(0);
        let length = |numbers: Vec<f32>| numbers.iter().map(|x| x * x).sum::<f32>().sqrt();
        let distance = length(whole.iter().zip(*shorter).map(|(a, b)| a - b).collect());
        let part = DISTANCE_MIN * (DISTANCE_TOKENS / most as f32).min(1.0);
        match distance < part * length(whole.to_vec()) {
            true => Err(format!(
                "it cuts texts before they have {most} tokens, of which no caller would hear; have it \
                 read as many as the model does here"
            )),
            false => Ok(()),
        }
    }

    /// Compares the vectors that an endpoint gave with those that are known.
    ///
    /// # Errors
    /// A clause: they are others.
    pub fn compare(&self, vectors: &[f32], dimensions: usize) -> Result<(), String> {
        let mut rows = vectors.chunks_exact(dimensions).zip(&self.known);
        rows.try_for_each(|(vector, known)| known.check(vector))
    }

    /// Whether nobody has given vectors yet.
    pub fn is_new(&self) -> bool {
        self.known.is_empty()
    }

    /// Takes an endpoint's vectors for those that others' have to be.
    pub fn know(&mut self, vectors: &[f32], dimensions: usize) {
        let known = |row: &[f32]| Reference::new(row.to_vec(), Reference::F32_COSINE_MIN);
        self.known = vectors.chunks_exact(dimensions).map(known).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_other_vectors_is_told() {
        let mut trial = Trial::of_ids(16);
        assert!(trial.is_new());
        let known = [1.0, 0.0, 0.0, 2.0];
        trial.know(&known, 2);
        assert!(!trial.is_new());
        assert_eq!(trial.compare(&known, 2), Ok(()));
        assert!(trial.compare(&[1.0, 0.0, 2.0, 0.0], 2).unwrap_err().contains("the cosine"));
        assert!(trial.compare(&[1.0, 0.0, 0.0, 4.0], 2).unwrap_err().contains("times as long"));
    }

    #[test]
    fn token_ids_are_tried_as_long_as_the_model_reads() {
        let trial = Trial::of_ids(18);
        let [short, long] = &trial.sent().collect::<Vec<_>>()[..] else { unreachable!() };
        assert_eq!((short.batch.lengths, long.batch.lengths), (&[8, 4][..], &[16, 15][..]));
        let (whole, shorter) = long.batch.ids.split_at(16);
        assert_eq!(&whole[..15], shorter);
        assert!(whole.iter().all(|id| PLAIN.contains(id)) && !PLAIN.contains(&3));
        // Nothing is left of a single token.
        assert_eq!(Trial::of_ids(3).sent().count(), 1);
        assert_eq!(Trial::of_ids(3).look(&[1.0, 0.0, 1.0, 0.0], 2), Ok(()));
    }

    #[test]
    fn who_cuts_is_told() {
        let trial = Trial::of_ids(18);
        let cut = trial.look(&[1.0, 0.0, 0.0, 2.0, 0.0, 2.0], 2).unwrap_err();
        assert!(cut.contains("it cuts texts before they have 16 tokens"), "{cut}");
        assert_eq!(trial.look(&[1.0, 0.0, 0.0, 2.0, 0.001, 2.0], 2), Ok(()));
        // One token of many is less.
        let seen = [0.0, 2.0, 0.000_1, 2.0];
        assert!(trial.look(&seen, 2).is_err());
        assert_eq!(Trial::of_ids(8192).look(&seen, 2), Ok(()));
    }

    /// Its ids have no written form.
    #[test]
    fn a_tokenizer_without_a_way_back_is_told() {
        let error = Trial::of_texts(&Tokenizer::bytes(16)).unwrap_err();
        assert!(error.contains("set inputs in [providers.remote] to token-ids"), "{error}");
    }
}
