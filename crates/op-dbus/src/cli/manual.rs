//! `op-dbus manual`: the manual pages, for whoever packages op-dbus. Each is made from what it
//! describes: the commands' definitions, the table of settings, the unit, the interface's XML.

mod interface;
mod page;
mod service;
mod settings;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueHint;

use super::{Done, Failure};

/// Write the manual pages into a folder
#[derive(clap::Args)]
pub struct Args {
    /// Folder in which man1, man5 and man8 are made
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

pub fn run(args: Args) -> Done {
    let folder = args.folder.display();
    match write(&args.folder) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            Err(Failure::refused(format!("can't write the pages into {folder}: {error}")))
        }
    }
}

fn write(folder: &Path) -> std::io::Result<()> {
    let commands = folder.join("man1");
    std::fs::create_dir_all(&commands)?;
    // The groups of the overview are laid out for a terminal; a page has its own layout.
    clap_mangen::generate_to(super::commands(), &commands)?;
    let mut overview = File::options().append(true).open(commands.join("op-dbus.1"))?;
    overview.write_all(page::references(&SEE_ALSO).to_roff().as_bytes())?;
    for (section, name, page) in [
        (5, "op-dbus.toml", settings::page()),
        (5, interface::NAME, interface::page()?),
        (8, "op-dbus.service", service::page()),
    ] {
        let folder = folder.join(format!("man{section}"));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("{name}.{section}")), page)?;
    }
    Ok(())
}

/// What the overview refers to beside the commands, for which clap has no section.
const SEE_ALSO: [&str; 3] = ["op-dbus.toml(5)", "org.opdbus.Embedding1(5)", "op-dbus.service(8)"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_variable_and_flag_is_in_its_page() {
        let page = settings::page();
        for row in op_dbus_daemon::settings::ROWS {
            let variable = row.variable();
            assert!(page.contains(&variable), "{variable} is not in: {page}");
            let flag = row.flag().replace('-', "\\-");
            assert!(page.contains(&flag), "{flag} is not in: {page}");
        }
        assert!(page.contains("[providers.webgpu]"), "{page}");
    }

    #[test]
    fn every_member_of_the_interface_is_in_its_page() {
        let page = interface::page().unwrap();
        let members = ["EmbedPacked", "CountTokens", "VectorSpace", "GetStatistics", "SetDevices"];
        let words = ["ProviderFallback", "expect_space", "compute_us", "QuotaExceeded"];
        for word in members.iter().chain(&words) {
            assert!(page.contains(word), "{word} is not in: {page}");
        }
    }

    #[test]
    fn the_page_of_the_unit_says_what_the_unit_says() {
        let page = service::page();
        for word in ["/usr/bin/op\\-dbus daemon", "60 s", "/var/lib/op\\-dbus", "high\\-value"] {
            assert!(page.contains(word), "{word} is not in: {page}");
        }
    }
}
