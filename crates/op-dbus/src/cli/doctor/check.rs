//! One finding, and the findings about one thing with what follows from them.

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is as it must be.
    Ok,
    /// It is not there.
    Missing,
    /// It is there and will not do.
    Wrong,
    /// It could not be looked at here, or does not matter.
    Unchecked,
}

impl State {
    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Wrong => "wrong",
            Self::Unchecked => "-",
        }
    }
}

/// Name of the check that a provider has really computed.
pub const PROOF: &str = "proof";
/// Name of the check of workers that could not be loaded where others were, and have computed.
pub const WORKERS: &str = "workers";
/// Name of the check of the installed unit, which a proof outside of it says nothing about.
pub const UNIT: &str = "unit";

/// What was looked at, what was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub check: &'static str,
    /// How it ended.
    pub state: State,
    /// What was found, or why not.
    pub found: String,
    /// What to do; only of what failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Check {
    /// It is as it must be.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, state: State::Ok, found: found.into(), next: None }
    }

    /// It could not be looked at.
    pub fn unchecked(check: &'static str, why: impl Into<String>) -> Self {
        Self { check, state: State::Unchecked, found: why.into(), next: None }
    }

    /// It is not there.
    pub fn missing(check: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        let next = Some(next.into());
        Self { check, state: State::Missing, found: found.into(), next }
    }

    /// It is there and will not do.
    pub fn wrong(check: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { state: State::Wrong, ..Self::missing(check, found, next) }
    }

    /// The same by a sentence that ends in what to do, or else with `otherwise`: one about another system than this
    /// has no advice.
    pub fn of_sentence(check: &'static str, sentence: &str, otherwise: &str) -> Self {
        let halves = sentence.split_once("; ").filter(|(_, next)| !next.starts_with("this is "));
        let (found, next) = halves.unwrap_or((sentence, otherwise));
        Self::wrong(check, found, next)
    }

    /// Whether it stands in the way.
    pub fn failed(&self) -> bool {
        matches!(self.state, State::Missing | State::Wrong)
    }
}

/// What was found about one provider.
#[derive(Debug, Serialize)]
pub struct Section {
    /// The provider's name.
    pub provider: String,
    /// Whether the settings or the command line ask for it.
    pub asked: bool,
    /// Whether it would work in the service; unknown where nothing is missing and nothing proved.
    pub works: Option<bool>,
    /// The one thing to do next, when it does not work.
    pub next: Option<String>,
    /// The checks, in the order in which their failures are to be mended.
    pub checks: Vec<Check>,
}

impl Section {
    /// Draws the conclusion from the checks.
    pub fn new(provider: String, asked: bool, checks: Vec<Check>) -> Self {
        // What has computed has all that it needs, also where that was not found in the usual place.
        let proved = checks.iter().any(|one| one.check == PROOF && one.state == State::Ok);
        let stands_in_the_way =
            |one: &&Check| one.failed() && (!proved || [UNIT, WORKERS].contains(&one.check));
        let first = checks.iter().find(stands_in_the_way);
        let works = if first.is_some() { Some(false) } else { proved.then_some(true) };
        let next = first.and_then(|one| one.next.clone());
        Self { provider, asked, works, next, checks }
    }

    /// The first thing that stands in the way.
    pub fn first_failure(&self) -> Option<&Check> {
        self.checks.iter().find(|one| one.failed() && one.next == self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_taken_apart_where_the_advice_begins() {
        let of = |sentence: &str| Check::of_sentence("library", sentence, "set another");
        let halves = ("cuda needs a library, which is not there", "type `pull`, or name one");
        let told = Check::wrong("library", halves.0, halves.1);
        assert_eq!(of(&format!("{}; {}", halves.0, halves.1)), told);
        let elsewhere = "coreml needs macOS; this is linux-x86_64";
        for sentence in [elsewhere, "it is damaged"] {
            assert_eq!(of(sentence), Check::wrong("library", sentence, "set another"));
        }
    }

    #[test]
    fn the_first_failure_says_what_to_do_next() {
        let checks = vec![
            Check::ok("a", ""),
            Check::missing("b", "no b", "get b"),
            Check::wrong("c", "bad c", "mend c"),
        ];
        let section = Section::new("x".to_owned(), true, checks);
        assert_eq!(section.works, Some(false));
        assert_eq!(section.next.as_deref(), Some("get b"));
        assert_eq!(section.first_failure().map(|one| one.check), Some("b"));
    }

    #[test]
    fn what_was_not_proved_is_not_said_to_work() {
        let checks = vec![Check::ok("driver", ""), Check::unchecked(PROOF, "left out")];
        assert_eq!(Section::new("x".to_owned(), true, checks).works, None);
    }

    #[test]
    fn a_proof_outweighs_what_was_not_found_but_neither_the_unit_nor_other_workers() {
        let missing = Check::missing("driver", "none", "install it");
        let proof = Check::ok(PROOF, "in 1 s");
        let section = Section::new("x".to_owned(), true, vec![missing.clone(), proof.clone()]);
        assert_eq!((section.works, section.next), (Some(true), None));
        let unit = Check::wrong(UNIT, "PrivateDevices=yes", "lay the profile over it");
        let found = vec![missing.clone(), unit, proof.clone()];
        let section = Section::new("x".to_owned(), true, found);
        assert_eq!(section.next.as_deref(), Some("lay the profile over it"));
        let other = Check::wrong(WORKERS, "x:1: no memory", "end what has it");
        let section = Section::new("x".to_owned(), true, vec![missing, proof, other]);
        assert_eq!((section.works, &*section.next.unwrap()), (Some(false), "end what has it"));
    }
}
