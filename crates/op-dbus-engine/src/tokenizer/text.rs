//! From token ids back to a text, for those who take nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Tokenizer;

/// A letter that few vocabularies have, and that is a word of its own between spaces.
const RARE: char = '\u{13000}';

impl Tokenizer {
    /// A text of which these token ids are made, special tokens included. It is not the text that they
    /// were made of: what the tokenizer does not heed, as capitals, is lost, and a rare letter stands
    /// for each word that the vocabulary lacks.
    ///
    /// There is none where a text was cut within a word whose part is tokenized otherwise.
    pub fn text(&self, ids: &[i32]) -> Option<String> {
        let content = ids.strip_prefix(&self.0.prefix[..])?.strip_suffix(&self.0.suffix[..])?;
        let content: Vec<u32> =
            content.iter().map(|id| u32::try_from(*id).ok()).collect::<Option<_>>()?;
        let mut text = self.written(&content)?;
        if let Some(unknown) = self.0.unknown.get_or_init(|| self.unknown()) {
            // Whoever reads the token's name as words would see them.
            text = text.replace(unknown, RARE.encode_utf8(&mut [0; 4]));
        }
        (self.content(&text).ok()? == content).then_some(text)
    }

    /// How the token is written that stands for a word that the vocabulary does not have, where one does.
    fn unknown(&self) -> Option<String> {
        let ids = self.content(RARE.encode_utf8(&mut [0; 4])).ok()?;
        let written = (ids.len() == 1).then(|| self.written(&ids)).flatten()?;
        let is_name = !written.is_empty() && !written.contains(RARE);
        is_name.then_some(written)
    }

    /// How the model's own tokenizer writes token ids.
    fn written(&self, ids: &[u32]) -> Option<String> {
        catch_unwind(AssertUnwindSafe(|| self.0.model.decode(ids, false))).ok()?.ok()
    }
}
