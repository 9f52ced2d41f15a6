//! The name of a model that is imported without one.

use std::path::Path;

use super::super::Failure;

/// The last folder or file name of the path, in lower case and without its ending.
pub fn of(path: &Path) -> Result<String, Failure> {
    let fail = |error: std::io::Error| {
        Failure::refused(format!("cannot read {}: {error}", path.display()))
    };
    let is_folder = std::fs::metadata(path).map_err(fail)?.is_dir();
    // What a link is called, whatever it leads to.
    let path = match path.ends_with("..") {
        true => path.canonicalize(),
        false => std::path::absolute(path),
    };
    let path = path.map_err(fail)?;
    let name = if is_folder { path.file_name() } else { path.file_stem() };
    let name = name.map(|name| name.to_string_lossy().to_lowercase());
    name.ok_or_else(|| {
        Failure::refused(format!("{} has no name to use; add --name", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_model_has_the_name_that_it_is_called_by() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("Own.v2/inside")).unwrap();
        fs::write(root.join("blob"), "").unwrap();
        symlink("blob", root.join("My-Model.onnx")).unwrap();
        for (path, name) in [
            ("My-Model.onnx", "my-model"),
            ("Own.v2", "own.v2"),
            ("Own.v2/.", "own.v2"),
            ("Own.v2/inside/..", "own.v2"),
        ] {
            assert_eq!(of(&root.join(path)).unwrap(), name, "{path}");
        }
        let refused = of(&root.join("none")).unwrap_err();
        assert!(refused.message().starts_with("cannot read "), "{refused:?}");
        assert!(of(Path::new("/")).is_err());
    }
}
