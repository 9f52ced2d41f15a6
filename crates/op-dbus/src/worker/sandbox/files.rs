//! Files, devices, sockets and signals, restricted by Landlock.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, make_bitflags, path_beneath_rules,
};

use super::places::Places;

/// The newest version that the crate knows. Of what the kernel does not know the crate takes away
/// nothing.
const NEWEST: ABI = ABI::V9;

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// Files and folders; no links, no sockets, no devices.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir
});
/// What is there, but nothing new. NVIDIA's driver opens the names of its threads as a file that it would make or
/// cut, and does not start (CUDA's error 304) where that is refused.
const USE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | IoctlDev});

/// Leaves this thread, and those that it will start, `places` and no others; no TCP
/// but to their ports, no abstract socket and no signal to whoever is not confined with it. Says what the kernel has of that.
///
/// A rule is about what is there: a place that is made later stays closed. The daemon makes the folder that a worker
/// writes in, and a worker that outlives its daemon for a moment makes nothing anew that was cleared away.
///
/// # Errors
/// The kernel refuses what it should know; then nothing is restricted.
pub fn restrict(places: Places) -> Result<LandlockStatus, RulesetError> {
    let Places { read, write, nodes, ports, programs } = places;
    let read_and_run = if programs { READ | AccessFs::Execute } else { READ };
    let ports = ports.into_iter().map(|port| NetPort::new(port, AccessNet::ConnectTcp));
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(read, read_and_run))?
        .add_rules(path_beneath_rules(write, WRITE))?
        .add_rules(path_beneath_rules(nodes, USE))?
        .add_rules(ports.map(Ok::<_, RulesetError>))?
        .restrict_self()?;
    Ok(status.landlock)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;

    /// As libcuda does it: by a file of another thread, opened as if to make or cut it.
    fn name_a_thread(nodes: &[&str]) -> (LandlockStatus, std::io::Result<()>) {
        let nodes = nodes.iter().map(|node| Path::new(node).to_owned()).collect();
        let places = Places { nodes, ..Places::default() };
        let confined = move || {
            // The kernel would make another folder of it when it has forgotten it.
            let _process = File::open("/proc/self").unwrap();
            // It holds for this thread, and those that it starts.
            let status = restrict(places).unwrap();
            let (told, number) = mpsc::channel();
            let (done, wait) = mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                told.send(nix::unistd::gettid()).unwrap();
                // Closed, never sent on.
                let _ = wait.recv();
            });
            let comm = format!("/proc/self/task/{}/comm", number.recv().unwrap());
            let open = OpenOptions::new().write(true).create(true).truncate(true).open(comm);
            let named = open.and_then(|mut file| file.write_all(b"cuda-EvtHandlr"));
            drop(done);
            other.join().unwrap();
            (status, named)
        };
        std::thread::spawn(confined).join().unwrap()
    }

    #[test]
    fn a_driver_names_its_threads_where_it_may() {
        name_a_thread(&["/proc/self"]).1.unwrap();
        let (status, named) = name_a_thread(&["/dev/null"]);
        // A kernel without Landlock refuses nothing.
        if matches!(status, LandlockStatus::Available { .. }) {
            assert_eq!(named.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        }
    }

    /// What a worker of a model tries in the folder of another, and in its own.
    #[test]
    fn nobody_reaches_what_is_made_of_another_model() {
        let cache = tempfile::tempdir().unwrap();
        let [own, other] = ["one", "other"].map(|model| cache.path().join(model));
        for folder in [&own, &other] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("packed"), "true").unwrap();
        }
        let (inside, outside) = (own.clone(), other.clone());
        let confined = move || {
            let status =
                restrict(Places { write: vec![inside.clone()], ..Places::default() }).unwrap();
            std::fs::write(inside.join("new"), "false").unwrap();
            std::fs::rename(inside.join("new"), inside.join("packed")).unwrap();
            let packed = outside.join("packed");
            let refused = [
                std::fs::read(&packed).map(drop),
                std::fs::write(&packed, "false"),
                OpenOptions::new().append(true).open(&packed).map(drop),
                std::fs::write(outside.join("more"), "false"),
                std::fs::create_dir(outside.join("more")),
                std::fs::rename(inside.join("packed"), &packed),
                std::fs::hard_link(inside.join("packed"), outside.join("more")),
                std::os::unix::fs::symlink(&packed, inside.join("link")),
                std::fs::remove_file(&packed),
                std::fs::rename(&outside, inside.join("taken")),
                std::fs::rename(&inside, outside.with_file_name("elsewhere")),
                std::fs::create_dir(outside.with_file_name("more")),
            ];
            (status, refused)
        };
        let (status, refused) = std::thread::spawn(confined).join().unwrap();
        if !matches!(status, LandlockStatus::Available { .. }) {
            // A kernel without Landlock refuses nothing.
            return;
        }
        for (number, attempt) in refused.into_iter().enumerate() {
            let error = attempt.expect_err(&number.to_string());
            // Between two folders nothing is moved, and nobody links.
            let expected = [libc::EACCES, libc::EXDEV].map(Some);
            assert!(expected.contains(&error.raw_os_error()), "{number}: {error}");
        }
        assert_eq!(std::fs::read(other.join("packed")).unwrap(), b"true");
        assert_eq!(std::fs::read(own.join("packed")).unwrap(), b"false");
    }
}
