//! The aggregate of another build, which serves a build until there is one of its own.

use super::Run;
use crate::{Changed, Error, Spool};
use fleet::{Build, Digest, Head, Key, Name, Newest, Policy, Program, Purpose, Slot, Verdict, read_former};

/// The newest other build, with its head.
struct Former {
    program: Program,
    head: Head,
}

impl Former {
    /// Returns whether a host with a build may use an aggregate of this one. `own` are aggregates that did harm
    /// on this host.
    fn may_serve(&self, program: &Program, digest: &Digest, policy: &Policy, own: &[Digest]) -> bool {
        !own.contains(digest)
            && !self.head.withdrawn.contains(digest)
            && !policy.denies(program, digest)
            && !policy.denies(&self.program, digest)
    }
}

impl<S: Spool> Run<'_, S> {
    /// Accepts the aggregate of the newest other build of a program, if this host has neither an aggregate
    /// nor a profile of the build itself. Else removes an accepted aggregate.
    pub(super) async fn take_former(&mut self, program: &Program, exe: &str) -> Result<(), Error> {
        let build = &program.build;
        let there = self.spool.inbox(build, Slot::Former)?;
        if self.spool.inbox(build, Slot::Own)?.is_some() || self.spool.profile(build)?.is_some() {
            return self.remove_former(build, there, "there is a profile of the build itself");
        }
        let Some(name) = Name::of(exe) else { return Ok(()) };
        let Some(former) = self.former(program, name).await? else {
            return self.remove_former(build, there, "no other build has an aggregate now");
        };
        let policy = self.policy_in_force();
        let mut own = self.of(program).harmful.clone();
        own.extend(&self.of(&former.program).harmful);
        let may_serve = |d: &Digest| former.may_serve(program, d, &policy, &own);
        let chosen = former.head.in_force(&former.program, &policy, &own).filter(may_serve);
        if chosen.is_some() && chosen == there {
            return Ok(());
        }
        if let Some(digest) = chosen {
            // There are no waves: a new build is rolled out step by step itself. Votes of its first hosts keep the
            // aggregate from all others.
            if policy.pause {
                self.done.kept_back.push(format!("{build}: the policy says pause"));
            } else if self.remote.votes(program, &digest).await?.verdict() == Verdict::Harmful {
                self.done.kept_back.push(format!(
                    "{build}: hosts of this build found harm by aggregate {digest} of another build"
                ));
            } else {
                let fits = |text: &[u8]| read_former(text, &digest, &former.program.build, name);
                match self.fetch(&former.program, digest, fits).await {
                    Ok(bytes) => {
                        self.spool.put(build, Slot::Former, &bytes)?;
                        let of = &former.program.build;
                        self.done
                            .accepted
                            .push(format!("{build}: aggregate {digest} of another build, {of}"));
                        return Ok(());
                    }
                    Err(e @ Error::Refused { .. }) => {
                        self.note(e);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        let barred = there.filter(|d| chosen.is_none() || !may_serve(d));
        self.remove_former(build, barred, "no host may use it any more")
    }

    fn remove_former(&mut self, build: &Build, there: Option<Digest>, why: &str) -> Result<(), Error> {
        if let Some(digest) = there {
            self.spool.remove(build, Slot::Former)?;
            self.done
                .accepted
                .push(format!("{build}: aggregate {digest} of another build was removed: {why}"));
        }
        Ok(())
    }

    /// Returns the newest other build of a program that has an aggregate.
    async fn former(&mut self, program: &Program, name: Name) -> Result<Option<Former>, Error> {
        let newest = match self.newest(program, name).await {
            Err(e) if !e.is_outage() => {
                self.note(e);
                self.memory.names.get(&name.to_string()).map(|(newest, _)| newest.clone())
            }
            result => result?,
        };
        let Some(build) = newest.and_then(|n| n.build()).filter(|b| *b != program.build) else {
            return Ok(None);
        };
        let program = Program { build, class: program.class.clone() };
        let head = self.head(&program).await?;
        Ok(head.map(|head| Former { program, head }))
    }

    /// Reads the record of the newest build, if it has changed.
    async fn newest(&mut self, program: &Program, name: Name) -> Result<Option<Newest>, Error> {
        let known = self.memory.names.get(&name.to_string()).cloned();
        let tag = known.as_ref().and_then(|(_, tag)| tag.as_deref());
        let key = Key::Newest(name);
        match self.remote.get_if_changed(program, &key, tag).await? {
            Changed::Missing | Changed::Same => Ok(known.map(|(newest, _)| newest)),
            Changed::New(bytes, tag) => {
                let refused = Self::refused(&key, program);
                let purpose = Purpose::Newest(name, program.class.clone());
                let content = self.host.keys.open(&bytes, &purpose).map_err(&refused)?;
                let seen = known.map_or(0, |(newest, _)| newest.written);
                let newest = Newest::parse(content, seen).map_err(&refused)?;
                self.memory.names.insert(name.to_string(), (newest.clone(), tag));
                Ok(Some(newest))
            }
        }
    }
}
