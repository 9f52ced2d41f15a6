//! What the dynamic loader finds and does not find for a library. The loader itself is asked, as a
//! process that lists and runs nothing of what it maps.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the C library has its loader, by architecture.
const LOADERS: &[(&str, &str)] =
    &[("x86_64", "/lib64/ld-linux-x86-64.so.2"), ("aarch64", "/lib/ld-linux-aarch64.so.1")];

/// The system's dynamic loader.
pub struct Loader(PathBuf);

impl Loader {
    /// The loader of this architecture, where it is in its place.
    pub fn here() -> Option<Self> {
        let (_, path) = LOADERS.iter().find(|(arch, _)| *arch == std::env::consts::ARCH)?;
        Some(Self(PathBuf::from(path))).filter(|loader| loader.0.is_file())
    }

    /// Libraries that `library` needs: those that are not found, or what the loader says of a file that it can't map;
    /// and where the others are.
    pub fn needed(&self, library: &Path) -> (Result<Vec<String>, String>, Vec<PathBuf>) {
        let (listed, said) = match self.list(library) {
            Ok(told) => told,
            Err(why) => return (Err(why), Vec::new()),
        };
        let missing = not_found(&listed);
        let missing = match said {
            Some(said) if missing.is_empty() => Err(said),
            _ => Ok(missing),
        };
        (missing, places(&listed))
    }

    /// Whether a library that is opened by name alone would be found.
    pub fn finds(&self, name: &str) -> bool {
        matches!(self.list(Path::new(name)), Ok((_, None)))
    }

    /// The list, and what the loader complains of. Like a worker it is not told `LD_LIBRARY_PATH`.
    fn list(&self, library: &Path) -> Result<(String, Option<String>), String> {
        let mut command = Command::new(&self.0);
        // As ldd asks: with --list it would end at the first library that it does not find.
        command.arg(library).env_clear().env("LD_TRACE_LOADED_OBJECTS", "1");
        let output = command.output();
        let output = output.map_err(|error| format!("the loader can't be asked ({error})"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let said = match output.status.success() {
            true => None,
            false => Some(text(&output.stderr).lines().next().unwrap_or_default().to_owned()),
        };
        Ok((text(&output.stdout), said))
    }
}

/// The files in the loader's list.
fn places(listed: &str) -> Vec<PathBuf> {
    let place = |line: &str| Some(line.split_once("=> ")?.1.split(" (").next()?.to_owned());
    listed
        .lines()
        .filter_map(place)
        .filter(|place| place.starts_with('/'))
        .map(Into::into)
        .collect()
}

/// The names in the loader's list that it found no file for.
fn not_found(listed: &str) -> Vec<String> {
    let missing = |line: &str| {
        let (name, place) = line.split_once("=>")?;
        (place.trim() == "not found").then(|| name.trim().to_owned())
    };
    let mut names: Vec<String> = listed.lines().filter_map(missing).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_file_are_missing() {
        let listed = "\tlinux-vdso.so.1 (0x1)\n\tlibcudart.so.13 => not found\n\
                      \tlibc.so.6 => /lib/libc.so.6 (0x2)\n\tlibcuda.so.1 => not found";
        assert_eq!(not_found(listed), ["libcudart.so.13", "libcuda.so.1"]);
        assert!(not_found("").is_empty());
    }

    #[test]
    fn the_loader_of_this_machine_answers() {
        let Some(loader) = Loader::here() else {
            eprintln!("SKIP: no dynamic loader of glibc");
            return;
        };
        assert!(loader.finds("libc.so.6"));
        assert!(!loader.finds("libnosuch.so.7"));
        let text = loader.needed(Path::new("/etc/passwd")).0.unwrap_err();
        assert!(text.contains("/etc/passwd"), "{text}");
        let (missing, found) = loader.needed(&std::env::current_exe().unwrap());
        assert_eq!(missing, Ok(Vec::new()));
        assert!(found.iter().any(|path| path.ends_with("libc.so.6")), "{found:?}");
    }
}
