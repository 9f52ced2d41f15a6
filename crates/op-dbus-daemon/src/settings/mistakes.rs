//! Where a value comes from, and the one message about everything that is wrong with the settings.

use std::fmt;
use std::path::PathBuf;

/// Where a setting's value was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// A variable that is not ours, but offers a better default than the built-in one.
    Offered(&'static str),
    /// A configuration file, and the line of the key where it is known (from 1).
    File(PathBuf, Option<usize>),
    /// The state file: changed while the service ran.
    State(PathBuf),
    /// This environment variable.
    Environment(String),
    /// This flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Offered(variable) => write!(f, "default from {variable}"),
            Origin::File(path, Some(line)) => write!(f, "{}, line {line}", path.display()),
            Origin::File(path, None) => write!(f, "{}", path.display()),
            Origin::State(path) => write!(f, "state file {}", path.display()),
            Origin::Environment(variable) => write!(f, "environment variable {variable}"),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where it was found.
    pub origin: Origin,
    /// One sentence without the place: the key, what was found, what is accepted.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)
    }
}

/// Something that the administrator should know, and that stops nothing: a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The id of its entry in the journal, if it has one.
    pub message_id: Option<&'static str>,
    /// The sentence.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Everything that is wrong with the settings, from all sources; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl Mistakes {
    /// The exit status this stops the program with: 2 (wrong usage) when only flags are wrong,
    /// else 6 (not configured).
    pub fn exit_code(&self) -> u8 {
        let only_flags = self.0.iter().all(|mistake| matches!(mistake.origin, Origin::Flag(_)));
        if only_flags { 2 } else { 6 }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("there is a mistake in the settings:")?,
            number => write!(f, "there are {number} mistakes in the settings:")?,
        }
        for mistake in &self.0 {
            write!(f, "\n  {mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}
