//! The command line of `cargo xtask bench-peers`.

use std::path::PathBuf;

use crate::shell::path;

/// Measure op-dbus beside other libraries and write docs/performance.md
///
/// These embed texts on a CPU, with the same texts and weights, in turn, round after round. Close everything
/// else; it takes about 18 minutes on two cores, and the first run installs the libraries (some GB).
#[derive(clap::Args)]
pub struct Args {
    /// About 3 minutes: fewer rounds, texts and levels; to see that it works
    #[arg(long)]
    pub quick: bool,
    /// Texts, one a line; may be repeated; without it generated ones
    #[arg(long = "corpus", value_name = "NAME=FILE", value_parser = corpus)]
    pub corpora: Vec<(String, PathBuf)>,
    /// Text, text and score with tabs between: how well each keeps their order
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub pairs: Option<PathBuf>,
    /// The level that the peers are measured at
    #[arg(long, default_value = "medium")]
    pub level: String,
    /// Model store [default: target/test-store/models, filled if it is not]
    #[arg(long, value_name = "DIR", value_parser = path)]
    pub models: Option<PathBuf>,
    /// These alone, for example onnxruntime,openvino
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub peers: Vec<String>,
    /// Measure this op-dbus [default: a release build of the checkout]
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub exe: Option<PathBuf>,
    /// Where performance.md and the plots go [default: docs]
    #[arg(long, value_name = "DIR", value_parser = path)]
    pub out: Option<PathBuf>,
}

fn corpus(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("write NAME=FILE")?;
    Ok((name.to_owned(), path(file).map_err(|error| error.to_string())?))
}
