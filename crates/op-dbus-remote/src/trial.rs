//! What every endpoint is tried with, and what it has to show.

use op_dbus_engine::{Batch, Reference, Tokenizer};

use crate::texts::Sent;

/// Ids that every vocabulary has, in rows of unequal length.
const IDS: [i32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const LENGTHS: [i32; 2] = [8, 4];

/// What texts are tried with: something short, and words of one token each, of which texts of any length
/// are made.
const SHORT: &str = "what others compute";
const WORDS: &str = "one red house stands by the old river and two green boats go to the sea ";
/// Least distance, as a part of its length, of the vector of a text and that of the same text without its
/// last word. Where a server cuts both to the same, there is none.
const DISTANCE_MIN: f32 = 1e-4;

/// A batch that nobody has sent, and the vectors that an endpoint gave for it first.
#[derive(Debug)]
pub struct Trial {
    ids: Vec<i32>,
    lengths: Vec<i32>,
    texts: Option<Vec<String>>,
    known: Vec<Reference>,
}

impl Trial {
    /// A trial of endpoints that take token ids.
    pub fn of_ids() -> Self {
        Self { ids: IDS.to_vec(), lengths: LENGTHS.to_vec(), texts: None, known: Vec::new() }
    }

    /// A trial of endpoints that take texts: a short one, one of as many tokens as the model reads, and
    /// that one without its last word.
    ///
    /// # Errors
    /// A clause: this tokenizer's ids do not become texts again.
    pub fn of_texts(tokenizer: &Tokenizer) -> Result<Self, String> {
        let trial = || {
            let whole = tokenizer.ids(&WORDS.repeat(tokenizer.max_input_tokens())).ok()?;
            let whole = tokenizer.text(&whole)?;
            let (shorter, _) = whole.rsplit_once(' ')?;
            let ids = |text: &str| tokenizer.ids(text).ok();
            let rows = [ids(SHORT)?, ids(&whole)?, ids(shorter)?];
            let lengths =
                rows.iter().map(|row| i32::try_from(row.len()).unwrap_or(i32::MAX)).collect();
            let (ids, known) = (rows.concat(), Vec::new());
            let texts = rows.iter().map(|ids| tokenizer.text(ids)).collect::<Option<_>>()?;
            Some(Self { ids, lengths, texts: Some(texts), known })
        };
        trial().ok_or_else(|| {
            "inputs is texts, and this model's tokenizer can't make texts of token ids; set inputs in \
             [providers.remote] to token-ids"
                .to_owned()
        })
    }

    fn batch(&self) -> Batch<'_> {
        Batch { ids: &self.ids, lengths: &self.lengths }
    }

    /// What is sent.
    pub fn sent(&self) -> Sent<'_> {
        Sent { batch: self.batch(), texts: self.texts.as_deref() }
    }

    /// Looks at the vectors that an endpoint gave; the first endpoint's are what others' have to be.
    ///
    /// # Errors
    /// A clause: they are others, or texts are cut there.
    pub fn judge(&mut self, vectors: &[f32], dimensions: usize) -> Result<(), String> {
        let rows: Vec<&[f32]> = vectors.chunks_exact(dimensions).collect();
        if let ([_, whole, shorter], Some(_)) = (&rows[..], &self.texts) {
            let length = |numbers: Vec<f32>| numbers.iter().map(|x| x * x).sum::<f32>().sqrt();
            let distance = length(whole.iter().zip(*shorter).map(|(a, b)| a - b).collect());
            if distance < DISTANCE_MIN * length(whole.to_vec()) {
                let most = self.lengths.iter().max().unwrap_or(&0);
                return Err(format!(
                    "it cuts texts before they have {most} tokens, of which no caller would hear; have it \
                     read as many as the model does here"
                ));
            }
        }
        if self.known.is_empty() {
            let cosine_min = Reference::F32_COSINE_MIN;
            let known = |vector: &&[f32]| Reference::new(vector.to_vec(), cosine_min);
            self.known = rows.iter().map(known).collect();
            return Ok(());
        }
        rows.iter().zip(&self.known).try_for_each(|(vector, known)| known.check(vector))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_other_vectors_is_told() {
        let mut trial = Trial::of_ids();
        let known = [1.0, 0.0, 0.0, 2.0];
        assert_eq!(trial.judge(&known, 2), Ok(()));
        assert_eq!(trial.judge(&known, 2), Ok(()));
        assert!(trial.judge(&[1.0, 0.0, 2.0, 0.0], 2).unwrap_err().contains("the cosine"));
        assert!(trial.judge(&[1.0, 0.0, 0.0, 4.0], 2).unwrap_err().contains("times as long"));
    }

    #[test]
    fn who_cuts_texts_is_told() {
        let mut trial = Trial::of_ids();
        trial.texts = Some(vec![String::new(); 3]);
        let cut = trial.judge(&[1.0, 0.0, 0.0, 2.0, 0.0, 2.0], 2).unwrap_err();
        assert!(cut.contains("it cuts texts before they have 8 tokens"), "{cut}");
        assert_eq!(trial.judge(&[1.0, 0.0, 0.0, 2.0, 0.001, 2.0], 2), Ok(()));
    }

    /// Its ids have no written form.
    #[test]
    fn a_tokenizer_without_a_way_back_is_told() {
        let error = Trial::of_texts(&Tokenizer::bytes(16)).unwrap_err();
        assert!(error.contains("set inputs in [providers.remote] to token-ids"), "{error}");
    }
}
