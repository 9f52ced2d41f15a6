//! The scratch environment that the peers live in, and the files that they read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell;

/// What each peer is installed from; fixed, so that figures can be taken again.
const PACKAGES: &[(&str, &[&str])] = &[
    // The exporter of everybody's files is torch's, and needs onnx.
    (
        "torch",
        &["torch==2.15.0", "sentence-transformers==6.2.0", "transformers==5.23.0", "onnx==1.23.2"],
    ),
    ("onnxruntime", &["onnxruntime==1.31.1"]),
    ("openvino", &["openvino==2026.4.1", "nncf==3.4.0"]),
    ("fastembed", &["fastembed==0.9.1"]),
];

/// A Python environment under `target/`, used for nothing else.
pub struct Environment {
    folder: PathBuf,
    /// The reason why a package group can't be used, by its name.
    missing: Vec<(String, String)>,
}

impl Environment {
    /// Makes the environment, or uses the one that is there, with what `libraries` need.
    ///
    /// # Errors
    /// Python itself, or its `venv`, does not work. A library that can't be installed is kept in
    /// mind, see [`Environment::reason`].
    pub fn make(folder: &Path, libraries: &[&str]) -> Result<Self, String> {
        let env = folder.join("env");
        let mut made = Self { folder: folder.to_owned(), missing: Vec::new() };
        if !made.python().exists() {
            println!("making {}", env.display());
            let mut venv = Command::new("python3");
            shell::run(venv.args(["-m", "venv"]).arg(&env).current_dir(shell::root()))
                .map_err(|error| format!("{error}; on Debian: apt-get install python3-venv"))?;
        }
        // Everybody's files are exported with torch.
        let needed = |name: &str| name == "torch" || libraries.contains(&name);
        for (name, packages) in PACKAGES.iter().filter(|(name, _)| needed(name)) {
            let done = env.join(format!("op-dbus-{name}.txt"));
            let wanted = packages.join("\n");
            if fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
                continue;
            }
            println!("installing {}", packages.join(" "));
            match made.install(packages) {
                Ok(()) => {
                    fs::write(&done, wanted).map_err(|e| format!("{}: {e}", done.display()))?
                }
                Err(reason) => made.missing.push(((*name).to_owned(), reason)),
            }
        }
        Ok(made)
    }

    fn install(&self, packages: &[&str]) -> Result<(), String> {
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        let output = pip.args(packages).current_dir(shell::root()).output();
        let output = output.map_err(|error| format!("can't run pip: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(last_line(&String::from_utf8_lossy(&output.stderr), "pip failed without a word"))
    }

    /// Why `library` can't be measured; `None` when it can.
    pub fn reason(&self, library: &str) -> Option<String> {
        let found = |wanted: &str| self.missing.iter().find(|(name, _)| name == wanted);
        let (name, reason) = found(library).or_else(|| found("torch"))?;
        Some(format!("{name} could not be installed: {reason}"))
    }

    pub fn python(&self) -> PathBuf {
        self.folder.join("env/bin/python")
    }

    /// A program of `xtask/peers`.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.python());
        command
            .arg(shell::root().join("xtask/peers").join(name))
            .current_dir(&self.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Weights come from the model store, nothing is fetched.
            .env("HF_HUB_OFFLINE", "1")
            .env("TOKENIZERS_PARALLELISM", "true");
        command
    }

    /// Makes what a peer reads of `model` from the store's weights, if it is not there yet: `steps`
    /// are what `export.py --make` takes.
    ///
    /// # Errors
    /// The last line that the exporter said.
    pub fn export(
        &self,
        model: &Path,
        work: &Path,
        (steps, texts): (&[&str], &Path),
    ) -> Result<(), String> {
        fs::create_dir_all(work).map_err(|error| format!("{}: {error}", work.display()))?;
        for step in steps {
            let done = work.join(format!("{step}.done"));
            if done.exists() {
                continue;
            }
            println!("exporting {step}");
            let mut export = self.program("export.py");
            export.arg("--model").arg(model).arg("--work").arg(work);
            export.arg("--texts").arg(texts).args(["--make", step]).stdout(Stdio::null());
            let output = export.output().map_err(|error| format!("can't run Python: {error}"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(format!("{step}: {}", last_line(&said, "failed without a word")));
            }
            fs::write(&done, "").map_err(|error| format!("{}: {error}", done.display()))?;
        }
        Ok(())
    }
}

/// The last line that says something.
pub fn last_line(text: &str, otherwise: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or(otherwise).chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_words_is_the_reason() {
        assert_eq!(last_line("a\n b \n\n", "x"), "b");
        assert_eq!(last_line("\n", "x"), "x");
    }
}
