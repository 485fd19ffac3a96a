//! The mappings of a process, from `/proc/PID/maps` (proc_pid_maps(5)).

use crate::Error;
use addr::{Avma, AvmaRange};

/// The access rights of a mapping or of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Perms {
    /// Readable.
    pub r: bool,
    /// Writable.
    pub w: bool,
    /// Executable.
    pub x: bool,
    /// Shared with other processes (`s`) rather than private copy-on-write (`p`).
    pub shared: bool,
}

/// One mapping of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses, whole pages.
    pub range: AvmaRange,
    /// Its access rights now.
    pub perms: Perms,
    /// The offset in the file at which it begins. Bytes.
    pub offset: u64,
    /// The major and minor number of the file's device; 0:0 without a file.
    pub dev: (u32, u32),
    /// The file's inode; 0 without a file.
    pub inode: u64,
    /// The file's path as the process sees it, or a name in brackets (`[heap]`, `[vdso]`, `[anon:name]`). The
    /// kernel writes a newline in a path as `\012` and does not escape the backslash, so the path is left
    /// unchanged.
    pub path: Option<String>,
    /// Whether the file no longer exists under this path. (A path that really ends in ` (deleted)` looks the
    /// same.)
    pub deleted: bool,
}

impl Mapping {
    /// Returns the path if the mapping is of a file, including a deleted file and a memfd.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.path.as_deref().filter(|p| p.starts_with('/'))
    }

    /// Returns whether two mappings are of the same file.
    #[must_use]
    pub fn same_file(&self, other: &Mapping) -> bool {
        self.inode == other.inode && self.dev == other.dev && self.path == other.path
    }
}

/// Parses the text of `/proc/PID/maps`: mappings in rising order, without overlap. While a process maps and
/// unmaps, the kernel's text may violate this order; the caller may then read it again.
///
/// # Errors
/// Returns [`Error::BadMapsLine`] for the first line that is not of this form or order.
pub fn parse(text: &str) -> Result<Vec<Mapping>, Error> {
    let mut out: Vec<Mapping> = Vec::new();
    for (i, line) in text.split('\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let bad = |what| Error::BadMapsLine { number: i + 1, line: line.chars().take(256).collect(), what };
        let m = mapping(line).map_err(bad)?;
        if out.last().is_some_and(|last| m.range.start < last.range.end) {
            return Err(bad("overlaps the mapping before it"));
        }
        out.push(m);
    }
    Ok(out)
}

/// Parses one line: `start-end perms offset dev inode   path`.
fn mapping(line: &str) -> Result<Mapping, &'static str> {
    // The path is the rest of the line and may contain any character, so only the five fields before it are
    // split off.
    let mut fields = line.splitn(6, ' ');
    let mut next = || fields.next().ok_or("a field is missing");
    let (start, end) = next()?.split_once('-').ok_or("no address range")?;
    let range = AvmaRange::new(Avma(hex(start)?), Avma(hex(end)?));
    if range.is_empty() {
        return Err("an empty address range");
    }
    let perms = perms(next()?)?;
    let offset = hex(next()?)?;
    let (major, minor) = next()?.split_once(':').ok_or("no device number")?;
    let device = |s| hex(s).and_then(|n| u32::try_from(n).map_err(|_| "a device number too large"));
    let dev = (device(major)?, device(minor)?);
    let inode = next()?;
    if !inode.bytes().all(|b| b.is_ascii_digit()) {
        return Err("no inode number");
    }
    let inode = inode.parse().map_err(|_| "no inode number")?;
    // The kernel pads the line to a column before the path. A path starts with `/` or `[`, never with a
    // space.
    let name = fields.next().unwrap_or("").trim_start_matches(' ');
    let (name, deleted) = match name.strip_suffix(" (deleted)") {
        Some(n) => (n, true),
        None => (name, false),
    };
    let path = (!name.is_empty()).then(|| name.to_owned());
    Ok(Mapping { range, perms, offset, dev, inode, path, deleted })
}

fn hex(s: &str) -> Result<u64, &'static str> {
    // `from_str_radix` alone would also accept a sign.
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err("not a hexadecimal number");
    }
    u64::from_str_radix(s, 16).map_err(|_| "a number over 64 bits")
}

fn perms(s: &str) -> Result<Perms, &'static str> {
    let &[r, w, x, p] = s.as_bytes() else { return Err("access rights are not four letters") };
    let flag = |b, letter| match b {
        b'-' => Ok(false),
        b if b == letter => Ok(true),
        _ => Err("unknown access right"),
    };
    let shared = match p {
        b's' => true,
        b'p' => false,
        _ => return Err("neither shared nor private"),
    };
    Ok(Perms { r: flag(r, b'r')?, w: flag(w, b'w')?, x: flag(x, b'x')?, shared })
}

/// Returns the mapping at an address. `maps` is in the order of [`parse`].
pub(crate) fn at(maps: &[Mapping], at: Avma) -> Option<&Mapping> {
    let i = maps.partition_point(|m| m.range.end <= at);
    maps.get(i).filter(|m| m.range.contains(at))
}

/// Returns the end of the run of adjoining mappings with property `ok` that contains `from`, or `from` if
/// there is none.
pub(crate) fn run_end(maps: &[Mapping], from: Avma, ok: impl Fn(&Mapping) -> bool) -> Avma {
    let mut end = from;
    let i = maps.partition_point(|m| m.range.end <= from);
    for m in maps.iter().skip(i) {
        if !m.range.contains(end) || !ok(m) {
            break;
        }
        end = m.range.end;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_lines() {
        let text = "\
55d0c0000000-55d0c0002000 r--p 00000000 fe:01 131 /usr/bin/my prog
55d0c0002000-55d0c0003000 r-xp 00002000 fe:01 131                        /usr/bin/my prog (deleted)
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
7f0000001000-7f0000002000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7f0000002000-7f0000003000 ---p 00000000 00:00 0                          [anon:glibc: malloc arena]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        let m = parse(text).unwrap();
        assert_eq!(m.len(), 6);
        assert_eq!(m[0].file(), Some("/usr/bin/my prog"));
        assert_eq!(m[0].dev, (0xfe, 1));
        assert_eq!(m[0].inode, 131);
        assert!(!m[0].deleted && m[1].deleted);
        assert!(m[0].same_file(&m[1]));
        assert_eq!(m[1].offset, 0x2000);
        assert_eq!(m[1].perms, Perms { r: true, w: false, x: true, shared: false });
        assert_eq!(m[2].path, None);
        assert!(m[3].perms.shared && m[3].deleted);
        assert_eq!(m[4].path.as_deref(), Some("[anon:glibc: malloc arena]"));
        assert_eq!(m[4].file(), None);
        assert_eq!(at(&m, Avma(0x7f00_0000_0fff)).unwrap().range.start, Avma(0x7f00_0000_0000));
        assert!(at(&m, Avma(0x7f00_0000_3000)).is_none());
        assert_eq!(run_end(&m, Avma(0x7f00_0000_0010), |m| m.perms.r), Avma(0x7f00_0000_2000));
        assert_eq!(run_end(&m, Avma(0x7f00_0000_3000), |_| true), Avma(0x7f00_0000_3000));
    }

    #[test]
    fn bad_lines_are_reported() {
        for (line, why) in [
            ("zz-7f r--p 0 0:0 0", "not a hexadecimal number"),
            ("+1-7f r--p 0 0:0 0", "not a hexadecimal number"),
            ("8-8 r--p 0 0:0 0", "an empty address range"),
            ("8 r--p 0 0:0 0", "no address range"),
            ("0-8 r--p 0 0:0", "a field is missing"),
            ("0-8 rrrp 0 0:0 0", "unknown access right"),
            ("0-8 r--q 0 0:0 0", "neither shared nor private"),
            ("0-8 r-- 0 0:0 0", "access rights are not four letters"),
            ("0-8 r--p 0 100000000:0 0", "a device number too large"),
            ("0-8 r--p 0 0:0 x", "no inode number"),
            ("0-10000000000000000 r--p 0 0:0 0", "a number over 64 bits"),
        ] {
            let text = format!("0-1000 r--p 0 0:0 0\n{}", line.replace("0-8", "1000-1008"));
            match parse(&text) {
                Err(Error::BadMapsLine { number: 2, what, .. }) => assert_eq!(what, why, "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        assert!(parse("0-2000 r--p 0 0:0 0\n1000-3000 r--p 0 0:0 0\n").is_err());
    }

    #[test]
    fn own_map() {
        let m = parse(&std::fs::read_to_string("/proc/self/maps").unwrap()).unwrap();
        assert!(m.iter().any(|m| m.path.as_deref() == Some("[stack]")));
    }

    #[test]
    fn any_text_causes_no_panic() {
        let good = "55d0c0000000-55d0c0002000 r-xp 00000000 fe:01 131   /a b (deleted)\n";
        arbtest::arbtest(|u| {
            let mut text = good.as_bytes().to_vec();
            for _ in 0..u.int_in_range(0..=6)? {
                let i = u.choose_index(text.len())?;
                if u.ratio(1, 4)? {
                    text.remove(i);
                    text.push(b'0');
                } else {
                    text[i] = *u.choose(b"0f- :\nrwxps/[\xc3\xa4(")?;
                }
            }
            if let Ok(m) = parse(&String::from_utf8_lossy(&text)) {
                assert!(m.windows(2).all(|w| w[0].range.end <= w[1].range.start));
            }
            let any: String = u.arbitrary()?;
            let _ = parse(&any);
            Ok(())
        })
        .budget_ms(1000);
    }
}
