//! The operator's commands: keys, signatures, policy, merging by hand.

use crate::{Config, Error, Merged, Merger, Remote, SigningKey, files, merge};
use fleet::{Build, Class, Key, Keys, Policy, Profile, Program, Purpose, prepare};
use std::path::Path;

fn build(text: &str) -> Result<Build, Error> {
    Build::parse(text)
        .ok_or_else(|| Error::Usage(format!("{text:?} is no build-id: an even number of hexadecimal digits")))
}

/// Signs a profile as an aggregate for a build.
pub(crate) fn sign(key: &Path, of: &str, class: &Class, input: &Path, output: &Path) -> Result<(), Error> {
    let key = SigningKey::read(key)?;
    let program = Program { build: build(of)?, class: class.clone() };
    let bytes = files::read(input)?.ok_or_else(|| files::failed(input, &"there is no such file"))?;
    let profile = Profile::read(&bytes).map_err(|e| files::failed(input, &e))?;
    let (text, _) = prepare(profile, &program.build).map_err(|e| files::failed(input, &e))?;
    files::write(output, &key.sign(&Purpose::Aggregate(program), text.as_bytes())?, 0o644)
}

/// Any program: the path of the policy does not depend on it.
fn any() -> Result<Program, Error> {
    Ok(Program { build: build("00")?, class: Class::default() })
}

/// Returns the policy in the store.
pub(crate) async fn policy(config: &Config) -> Result<Policy, Error> {
    let program = any()?;
    let Some(bytes) = config.remote()?.get(&program, &Key::Policy).await? else {
        return Ok(Policy::default());
    };
    let parsed = config.keys()?.open(&bytes, &Purpose::Policy).and_then(Policy::parse);
    parsed.map_err(|why| Error::Refused { object: Key::Policy.path(&program), why })
}

/// Signs a policy and puts it into the store. Its serial number must be greater than that of the policy
/// before.
pub(crate) async fn set_policy(config: &Config, key: &Path, file: &Path) -> Result<Policy, Error> {
    let key = SigningKey::read(key)?;
    let bytes = files::read(file)?.ok_or_else(|| files::failed(file, &"there is no such file"))?;
    let new = Policy::parse(&bytes).map_err(|e| files::failed(file, &e))?;
    let before = policy(config).await?.serial;
    if new.serial <= before {
        let why = format!("serial: must be greater than {before}, that of the policy in the store");
        return Err(Error::Usage(why));
    }
    let signed = key.sign(&Purpose::Policy, new.text().as_bytes())?;
    config.remote()?.replace(&any()?, &Key::Policy, signed).await?;
    Ok(new)
}

/// Does one step for the given build, or for all programs in the store. Returns a line for each.
pub(crate) async fn merge_all(config: &Config, key: &Path, only: Option<&str>) -> Result<Vec<String>, Error> {
    let key = SigningKey::read(key)?;
    let mut trusted = config.keys.clone();
    trusted.push(key.public().to_owned());
    let keys = Keys::parse(&trusted).map_err(|e| Error::Usage(e.to_string()))?;
    let merger = Merger { id: config.host_id()?, key, keys };
    let remote: Remote = config.remote()?;
    let programs = match only {
        Some(text) => vec![Program { build: build(text)?, class: config.class.clone() }],
        None => remote.programs().await?,
    };
    let mut lines = Vec::new();
    let mut failed = None;
    for program in programs {
        match merge(&remote, &merger, &program).await {
            Ok((merged, refused)) => {
                lines.push(match merged {
                    Merged::Unchanged(why) => format!("{program}: unchanged: {why}"),
                    Merged::Replaced(head, why) => format!("{program}: head {}: {why}", head.serial),
                    Merged::Late => format!("{program}: another merger was first"),
                });
                lines.extend(refused.iter().map(|r| format!("{program}: {r}")));
            }
            Err(e) => {
                lines.push(format!("{program}: {e}"));
                let ends = e.is_outage();
                failed.get_or_insert(e);
                if ends {
                    break;
                }
            }
        }
    }
    failed.map_or(Ok(lines), Err)
}
