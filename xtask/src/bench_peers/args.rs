//! The command line of `cargo xtask bench-peers`.

use std::path::PathBuf;

pub const HELP: &str = "\
Usage: cargo xtask bench-peers [OPTIONS]

Measures op-dbus beside other libraries that embed texts on a CPU, with the same texts and weights,
in turn, round after round, and writes the tables and plots of docs/performance.md. Close everything
else; it takes about 18 minutes on two cores, and the first run installs the libraries (some GB).

Options:
  --quick                 about 3 minutes: fewer rounds, texts and levels; to see that it works
  --corpus NAME=FILE      texts, one a line; may be repeated; without it generated ones
  --pairs FILE            text, text and score with tabs between: how well each keeps their order
  --level LEVEL           the level that the peers are measured at [default: medium]
  --models DIR            model store [default: target/test-store/models, filled if it is not]
  --peers NAME,…          these alone, for example onnxruntime,openvino
  --exe FILE              measure this op-dbus [default: a release build of the checkout]
  --out DIR               where performance.md and the plots go [default: docs]
";

/// What is asked for.
pub struct Args {
    pub quick: bool,
    pub corpora: Vec<(String, PathBuf)>,
    pub pairs: Option<PathBuf>,
    pub level: String,
    pub models: Option<PathBuf>,
    pub peers: Vec<String>,
    pub exe: Option<PathBuf>,
    pub out: Option<PathBuf>,
}

impl Args {
    /// Reads the words after the task's name; `None` when help was asked for.
    ///
    /// # Errors
    /// The first word that is not understood.
    pub fn read(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut args = Self {
            quick: false,
            corpora: Vec::new(),
            pairs: None,
            level: "medium".to_owned(),
            models: None,
            peers: Vec::new(),
            exe: None,
            out: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--help" | "-h" => return Ok(None),
                "--quick" => args.quick = true,
                "--corpus" => {
                    let value = value()?;
                    let (name, path) = value
                        .split_once('=')
                        .ok_or_else(|| format!("--corpus {value}: write NAME=FILE"))?;
                    args.corpora.push((name.to_owned(), absolute(path)?));
                }
                "--pairs" => args.pairs = Some(absolute(&value()?)?),
                "--level" => args.level = value()?,
                "--models" => args.models = Some(absolute(&value()?)?),
                "--peers" => args.peers = value()?.split(',').map(str::to_owned).collect(),
                "--exe" => args.exe = Some(absolute(&value()?)?),
                "--out" => args.out = Some(absolute(&value()?)?),
                _ => return Err(format!("{word} is not an option of bench-peers")),
            }
        }
        Ok(Some(args))
    }
}

/// Commands run in the root of the checkout, wherever we were started.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Args>, String> {
        Args::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read() {
        let args = read("--quick --corpus logs=/a/b.txt --level low --peers torch,openvino");
        let args = args.unwrap().unwrap();
        assert!(args.quick && args.level == "low");
        assert_eq!(args.corpora, [("logs".to_owned(), PathBuf::from("/a/b.txt"))]);
        assert_eq!(args.peers, ["torch", "openvino"]);
        assert!(read("--help").unwrap().is_none());
        for wrong in ["--fast", "--corpus", "--corpus x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
