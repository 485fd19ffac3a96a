//! Which kernel runs here.

/// Returns the kernel's release, as `uname -r` prints it; empty if it is not shown.
pub(crate) fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Returns the major and minor number of a release.
pub(crate) fn version(release: &str) -> (u32, u32) {
    let mut parts = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Returns the version that runs.
pub(crate) fn running() -> (u32, u32) {
    version(&release())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        let of = ["6.18.44-fc", "6.1.0-28-amd64", "4.17", "6", ""].map(version);
        assert_eq!(of, [(6, 18), (6, 1), (4, 17), (6, 0), (0, 0)]);
        assert!(running() > (3, 0));
    }
}
