//! Configuration files that others may write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use nix::unistd::geteuid;

use super::{MAIN, Tree};

const DROP_IN: &str = "etc/op-dbus/conf.d/10-a.toml";

#[test]
fn files_that_others_may_write_are_refused() {
    for file in [MAIN, DROP_IN, "usr/lib/op-dbus/config.toml"] {
        let tree = Tree::new(&[(file, "threads = 3")]);
        for mode in [0o664, 0o646, 0o666] {
            fs::set_permissions(tree.path().join(file), Permissions::from_mode(mode)).unwrap();
            let expected = format!(
                "/{file}: it cannot be used: others than its owner may write it (mode {mode:04o}); type `chmod \
                 go-w /{file}`"
            );
            let text = tree.mistakes();
            assert!(text.contains(&expected), "{text}");
        }
        fs::set_permissions(tree.path().join(file), Permissions::from_mode(0o640)).unwrap();
        assert_eq!(tree.loaded().settings.threads, Some(3));
    }
}

#[test]
fn files_of_somebody_else_are_refused() {
    if !geteuid().is_root() {
        eprintln!("SKIP: not root");
        return;
    }
    let tree = Tree::new(&[("their.toml", "threads = 3"), (MAIN, "")]);
    let (file, folder) = (tree.path().join(MAIN), tree.path().join("etc/op-dbus"));
    let their = tree.path().join("their.toml");
    chown(&their, Some(64_905), None).unwrap();
    // The link is ours, and what it leads to theirs.
    fs::remove_file(&file).unwrap();
    symlink(&their, &file).unwrap();
    let text = tree.mistakes();
    let expected = "the user 64905 may write it, whose /etc/op-dbus is not; type `chown \
                    --reference=/etc/op-dbus /etc/op-dbus/config.toml`";
    assert!(text.contains(expected), "{text}");
    // In a folder of theirs they do what they like.
    chown(&folder, Some(64_905), None).unwrap();
    assert_eq!(tree.loaded().settings.threads, Some(3));
}
