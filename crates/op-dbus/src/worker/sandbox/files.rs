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
const USE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | IoctlDev});

/// Leaves this thread, and those that it will start, `places` and no others; no TCP
/// but to their ports, no abstract socket and no signal to whoever is not confined with it. Says what the kernel has of that.
///
/// # Errors
/// The kernel refuses what it should know; then nothing is restricted.
pub fn restrict(places: Places) -> Result<LandlockStatus, RulesetError> {
    let Places { read, write, nodes, ports, programs } = places;
    // A rule is about what is there: whoever writes into it would make it, which comes too late.
    for folder in &write {
        // Whether it can be used is told by whoever needs it.
        let _ = std::fs::create_dir_all(folder);
    }
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
