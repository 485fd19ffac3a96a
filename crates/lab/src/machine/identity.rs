//! The parts of a host: its CPU, caches, distribution and disks.

use super::tree::{Read, list};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The model of a CPU, by the numbers of its CPUID instruction.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// `GenuineIntel`, `AuthenticAMD`…
    pub vendor: String,
    /// Its family.
    pub family: u32,
    /// Its model within the family.
    pub model: u32,
    /// Its stepping.
    pub stepping: u32,
}

/// A cache of the first CPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cache {
    /// Its level, from 1.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size as the kernel prints it: `32K`.
    pub size: String,
    /// How many CPUs share it.
    pub shared_by: usize,
}

/// The file system that holds a folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Disk {
    /// The folder.
    pub folder: String,
    /// Its type: `ext4`, `tmpfs`…
    pub file_system: String,
    /// The device, or the name that the kernel shows instead of one.
    pub device: String,
    /// The device's model, if it reports one.
    pub model: Option<String>,
    /// Whether the kernel reports a rotating disk. Many virtual disks report one by default.
    pub rotational: Option<bool>,
}

/// Returns the value of a field in /proc/cpuinfo, of the first CPU.
pub fn cpuinfo(text: &str, name: &str) -> Option<String> {
    let of_line = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(of_line)
}

impl Cpu {
    /// Reads the numbers from the text of /proc/cpuinfo. Unknown numbers are 0.
    pub fn parse(text: &str) -> Self {
        let number = |name| cpuinfo(text, name).and_then(|v| v.parse().ok()).unwrap_or(0);
        Self {
            vendor: cpuinfo(text, "vendor_id").unwrap_or_else(|| "unknown".to_owned()),
            family: number("cpu family"),
            model: number("model"),
            stepping: number("stepping"),
        }
    }

    /// Describes the CPU in words.
    pub fn words(&self) -> String {
        let Self { vendor, family, model, stepping } = self;
        format!("{vendor}, family {family}, model {model}, stepping {stepping}")
    }
}

/// Lists the caches of a CPU, as /sys has them.
pub fn caches(read: Read<'_>, cpu: usize) -> Vec<Cache> {
    let of = |n: usize| {
        let file = |name: &str| read(&format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{n}/{name}"));
        Some(Cache {
            level: file("level")?.parse().ok()?,
            kind: file("type")?,
            size: file("size")?,
            shared_by: list(&file("shared_cpu_list")?).len(),
        })
    };
    (0..8).filter_map(of).collect()
}

impl Cache {
    /// Describes the cache in words: `L1 Instruction 32K`.
    pub fn words(&self) -> String {
        let kind =
            if self.kind == "Unified" { String::new() } else { format!(" {}", self.kind.to_lowercase()) };
        let shared = if self.shared_by > 1 { format!(" for {} CPUs", self.shared_by) } else { String::new() };
        format!("L{}{kind} {}{shared}", self.level, self.size)
    }
}

/// Returns the distribution's name and version, from the text of /etc/os-release.
pub fn distribution(text: &str) -> Option<String> {
    let line = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').to_owned())
}

/// Returns the file system that holds `folder`, an absolute path without symbolic links.
pub fn disk(read: Read<'_>, folder: &Path) -> Option<Disk> {
    let mounts = read("/proc/self/mountinfo")?;
    // Of two mounts on one folder, the later one hides the earlier one.
    let mounted = mounts.lines().filter_map(mount).filter(|m| folder.starts_with(&m.at));
    let found = mounted.max_by_key(|m| m.at.len())?;
    let block = format!("/sys/dev/block/{}", found.number);
    // A partition has no queue of its own.
    let of_device =
        |name: &str| read(&format!("{block}/{name}")).or_else(|| read(&format!("{block}/../{name}")));
    Some(Disk {
        folder: folder.display().to_string(),
        file_system: found.file_system,
        device: found.device,
        model: of_device("device/model").filter(|m| !m.is_empty()),
        rotational: of_device("queue/rotational").map(|r| r == "1"),
    })
}

struct Mount {
    number: String,
    at: String,
    file_system: String,
    device: String,
}

/// Parses a line of mountinfo: `36 35 98:0 /root /at options - ext4 /dev/sda1 options`, with any number of
/// fields before the dash.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let number = left.next()?.to_owned();
    let at = left.nth(1)?.replace("\\040", " ");
    let mut right = right.split(' ');
    Some(Mount { number, at, file_system: right.next()?.to_owned(), device: right.next()?.to_owned() })
}

impl Disk {
    /// Describes the disk in words.
    pub fn words(&self) -> String {
        let model = self.model.as_ref().map(|m| format!(", {m}")).unwrap_or_default();
        let turns = if self.rotational == Some(true) { ", reported as rotational" } else { "" };
        format!("{}: {} on {}{model}{turns}", self.folder, self.file_system, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded on a cloud VM.
    const CPUINFO: &str = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\nflags\t\t: fpu vme hypervisor\n\nprocessor\t: 1\nmodel\t\t: 9\n";

    #[test]
    fn the_numbers_of_a_cpu() {
        let cpu = Cpu::parse(CPUINFO);
        assert_eq!(cpu.words(), "AuthenticAMD, family 26, model 2, stepping 1");
        assert_eq!(cpuinfo(CPUINFO, "model name").as_deref(), Some("AMD EPYC"));
        assert_eq!(Cpu::parse("").words(), "unknown, family 0, model 0, stepping 0");
    }

    #[test]
    fn caches_with_their_sharing() {
        let read = |path: &str| {
            let (index, name) =
                path.strip_prefix("/sys/devices/system/cpu/cpu0/cache/index")?.split_once('/')?;
            let value = match (index, name) {
                ("0", "level") => "1",
                ("0", "type") => "Instruction",
                ("0", "size") => "32K",
                ("0", "shared_cpu_list") => "0,4",
                ("1", "level") => "3",
                ("1", "type") => "Unified",
                ("1", "size") => "32768K",
                ("1", "shared_cpu_list") => "0",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let words: Vec<String> = caches(&read, 0).iter().map(Cache::words).collect();
        assert_eq!(words, ["L1 instruction 32K for 2 CPUs", "L3 32768K"]);
    }

    #[test]
    fn the_innermost_mount_holds_a_folder() {
        let mounts = "27 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n30 27 0:26 / /srv rw shared:1 master:2 - tmpfs none rw\n31 27 0:27 / /srv/my\\040data rw - xfs /dev/md0 rw";
        let read = |path: &str| {
            let value = match path {
                "/proc/self/mountinfo" => mounts,
                "/sys/dev/block/254:1/../queue/rotational" => "1",
                "/sys/dev/block/254:1/../device/model" => "QEMU HARDDISK",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let words = |folder: &str| disk(&read, Path::new(folder)).unwrap().words();
        assert_eq!(words("/srvx/a"), "/srvx/a: ext4 on /dev/vda1, QEMU HARDDISK, reported as rotational");
        assert_eq!(words("/srv/a"), "/srv/a: tmpfs on none");
        assert_eq!(words("/srv/my data"), "/srv/my data: xfs on /dev/md0");
    }

    #[test]
    fn the_distribution_by_its_name() {
        let text = "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(distribution(text).as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
    }
}
