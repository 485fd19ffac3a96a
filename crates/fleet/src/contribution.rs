//! A contribution: the profile of one host, without data that no other host can use.

use crate::{Build, Digest, Name, Refused};
use profile::Profile;

/// The most bytes of the text of a profile in the fleet.
pub const CONTRIBUTION_LIMIT: usize = 2 << 20;

/// Returns the text of a contribution, and its digest. Names of modules and functions are left out, and the
/// least executed functions beyond [`CONTRIBUTION_LIMIT`]. Of programs it has a hash of the file names.
///
/// # Errors
/// Returns [`Refused::OtherBuild`] if the profile has no function of the build.
pub fn prepare(mut profile: Profile, build: &Build) -> Result<(String, Digest), Refused> {
    Name::put_in(&mut profile);
    profile.tame();
    for module in profile.modules.values_mut() {
        module.name.clear();
        for function in module.functions.values_mut() {
            function.name.clear();
            function.binding = profile::Binding::None;
        }
    }
    profile.modules.retain(|_, m| !m.functions.is_empty());
    profile.shrink_to(CONTRIBUTION_LIMIT);
    has(&profile, build)?;
    let text = profile.to_string();
    let digest = Digest::of(text.as_bytes());
    Ok((text, digest))
}

/// Reads the text of a contribution or of an aggregate, and checks it against its name.
///
/// # Errors
/// [`Refused`], if it is too large, has another digest, is no profile, or has no function of the build.
pub fn read(text: &[u8], digest: &Digest, build: &Build) -> Result<Profile, Refused> {
    if text.len() > CONTRIBUTION_LIMIT {
        return Err(Refused::TooLarge { limit: CONTRIBUTION_LIMIT });
    }
    if Digest::of(text) != *digest {
        return Err(Refused::OtherDigest);
    }
    let mut profile = Profile::read(text)?;
    profile.tame();
    has(&profile, build)?;
    Ok(profile)
}

fn has(profile: &Profile, build: &Build) -> Result<(), Refused> {
    let there = profile.modules.get(build).is_some_and(|m| !m.functions.is_empty());
    there.then_some(()).ok_or_else(|| Refused::OtherBuild(build.to_string()))
}
