//! A MariaDB whose new data folders are copies of one folder. The folder is created once, because that takes
//! longer than most tests.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const SERVER: &str = "/usr/sbin/mariadbd";
const LOG: &str = "--innodb-log-file-size=10M";
/// Replaces the script that creates data folders.
const SCRIPT: &str = r#"#!/bin/sh
for word; do
    case $word in --datadir=*) exec cp -a "$(dirname "$0")/../data" "${word#--datadir=}" ;; esac
done
exit 1
"#;

/// Returns the options by which the lab uses the prepared server.
pub fn options() -> [String; 2] {
    // The log has this size; with another size the server would create it again at its start.
    [format!("--server-binary={}", folder().join("bin/mariadbd").display()), format!("--server-option={LOG}")]
}

/// Copies the prepared data folder.
pub fn copy_data(to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(folder().join("data")).arg(to).status().unwrap().success());
}

/// Returns the folder of the prepared server, laid out as a server's own folder is. It stays in the build
/// folder, for the next run of the tests.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // The folder's name has the time of the server's program, so a newer package gets a new folder.
        let made = fs::metadata(SERVER).unwrap().mtime();
        let folder = parent.join(format!("lab-server-{made}"));
        if !folder.exists() {
            let new = tempfile::tempdir_in(parent).unwrap();
            fill(new.path());
            // If another process has created the folder meanwhile, its folder is used.
            if fs::rename(new.path(), &folder).is_ok() {
                let _ = new.keep();
            }
        }
        folder
    })
}

fn fill(folder: &Path) {
    for name in ["bin", "scripts"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    symlink(SERVER, folder.join("bin/mariadbd")).unwrap();
    let script = folder.join("scripts/mariadb-install-db");
    fs::write(&script, SCRIPT).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut install = Command::new("mariadb-install-db");
    install.arg("--no-defaults").arg(format!("--datadir={}", folder.join("data").display()));
    install.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", LOG]);
    install.args(is_root.then_some("--user=root"));
    assert!(install.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
}
