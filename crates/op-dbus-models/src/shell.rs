//! Commands that are told to be copied into a shell.

use std::path::Path;

/// A path as one word of a command, whatever is in its name.
#[must_use]
pub fn shell_word(path: &Path) -> String {
    let path = path.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./+:@=-".contains(&byte);
    match !path.is_empty() && path.bytes().all(is_plain) {
        true => path.into_owned(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{foreign_writer, named};

    #[test]
    fn a_path_is_one_word() {
        let word = |path: &str| shell_word(Path::new(path));
        assert_eq!(word("/srv/models-1.0_a+b:c@d=e"), "/srv/models-1.0_a+b:c@d=e");
        assert_eq!(word("/srv/it's; rm -rf $x"), r"'/srv/it'\''s; rm -rf $x'");
        assert_eq!(word("ü"), "'ü'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn commands_to_copy_have_their_paths_quoted() {
        assert_eq!(named(Path::new("/srv/my models")), " --model-dir '/srv/my models'");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        let (_, fix) = foreign_writer(&path, &meta, folder.path()).unwrap();
        assert_eq!(fix, format!("chmod go-w '{}'", path.display()));
    }
}
