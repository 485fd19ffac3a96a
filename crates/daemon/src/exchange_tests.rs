use super::*;
use crate::states::Source;
use minisign::KeyPair;

const BUILD: &str = "0a0b";
const FORMER: &str = "0c0d";
const EXE: &str = "/bin/x";

struct Fixture {
    folder: tempfile::TempDir,
    pair: KeyPair,
    exchange: Exchange,
}

fn text(build: &str) -> String {
    text_of(build, &Name::of(EXE).unwrap().to_string())
}

fn text_of(build: &str, exe: &str) -> String {
    format!(
        "whet-profile 2\nexe {exe}\nruns 1\nmodule {build}\nfunction 0x10 7 counted entered 1 samples 1 size 0x4 none\n+0 +0 1\nend\n"
    )
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for part in ["spool/in", "spool/out"] {
            fs::create_dir_all(folder.path().join(part)).unwrap();
        }
        let pair = KeyPair::generate_unencrypted_keypair().unwrap();
        let mut fixture =
            Self { exchange: Exchange::new(&Fleet::default(), &Store::new(folder.path())), folder, pair };
        fixture.restart();
        fixture
    }

    fn restart(&mut self) {
        let spool = Some(self.folder.path().join("spool"));
        let config = Fleet { spool, keys: vec![self.pair.pk.to_base64()], class: Class::default() };
        self.exchange = Exchange::new(&config, &Store::new(&self.folder.path().join("state")));
    }

    fn signed(&self, pair: &KeyPair, build: &str, text: &str) -> Vec<u8> {
        let program = Program { build: Build::parse(build).unwrap(), class: Class::default() };
        let purpose = Purpose::Aggregate(program).to_string();
        let signature = minisign::sign(None, &pair.sk, text.as_bytes(), Some(&purpose), None).unwrap();
        fleet::seal(&signature.into_string(), text.as_bytes())
    }

    fn inbox(&self, slot: Slot) -> PathBuf {
        self.folder.path().join("spool/in").join(slot.file(BUILD))
    }

    /// Puts bytes into the inbox, as `whet-fleet` does.
    fn put(&mut self, slot: Slot, bytes: &[u8]) -> Option<Taken> {
        write_whole(&self.inbox(slot), bytes).unwrap();
        self.run(slot)
    }

    fn run(&mut self, slot: Slot) -> Option<Taken> {
        self.exchange.run(&[(BUILD.to_owned(), EXE.to_owned())].into()).unwrap();
        let report = fs::read(self.folder.path().join("spool/out/host.json")).unwrap();
        let build = HostReport::parse(&report).unwrap().builds.remove(0);
        if slot == Slot::Own { build.inbox } else { build.former }
    }
}

/// Returns the build whose aggregate is in a slot.
fn build_in(slot: Slot) -> &'static str {
    if slot == Slot::Own { BUILD } else { FORMER }
}

#[test]
fn a_signed_profile_is_taken_and_withdrawn() {
    for slot in Slot::ALL {
        let mut f = Fixture::new();
        assert_eq!((f.run(slot), f.exchange.usable(BUILD, slot)), (None, None));
        let text = text(build_in(slot));
        let bytes = f.signed(&f.pair, build_in(slot), &text);
        let digest = Digest::of(text.as_bytes());
        assert_eq!(f.put(slot, &bytes), Some(Taken::Taken(digest)));
        let (path, used) = f.exchange.usable(BUILD, slot).unwrap();
        assert_eq!(used, digest);
        let kept = fs::read_to_string(&path).unwrap();
        // The engine finds functions of another build by the name of the program's file.
        let module = if slot == Slot::Own { "\nmodule 0a0b\n" } else { "\nmodule 0c0d x\n" };
        assert!(kept.contains(module) && (kept == text) == (slot == Slot::Own), "{kept}");
        // A refused file does not withdraw the file before. After a restart there is none.
        assert_eq!(f.put(slot, b"nonsense"), Some(Taken::Taken(digest)));
        f.restart();
        assert!(matches!(f.run(slot), Some(Taken::Refused(_))));
        assert_eq!(f.put(slot, &bytes), Some(Taken::Taken(digest)));
        fs::remove_file(f.inbox(slot)).unwrap();
        assert_eq!((f.run(slot), path.exists()), (None, false));
    }
}

#[test]
fn foreign_and_damaged_files_are_refused_with_the_reason() {
    for slot in Slot::ALL {
        let mut f = Fixture::new();
        let other = KeyPair::generate_unencrypted_keypair().unwrap();
        let build = build_in(slot);
        let good = f.signed(&f.pair, build, &text(build));
        let mut changed = good.clone();
        *changed.last_mut().unwrap() ^= 1;
        let huge = vec![b'x'; usize::try_from(LIMIT).unwrap() + 1];
        let misplaced = build_in(if slot == Slot::Own { Slot::Former } else { Slot::Own });
        let mut cases = vec![
            (text(build).into_bytes(), "signature"),
            (f.signed(&other, build, &text(build)), "none of the configured keys"),
            (f.signed(&f.pair, misplaced, &text(misplaced)), "it was signed as"),
            (f.signed(&f.pair, build, &text("0e")), "no function of build"),
            (f.signed(&f.pair, build, "whet-profile 9\nend\n"), "version 9"),
            (changed, "changed, or cut off"),
            (good[..good.len() - 5].to_vec(), "changed, or cut off"),
            (huge, "no plain file"),
            (Vec::new(), "signature"),
        ];
        if slot == Slot::Former {
            let of_other = text_of(build, &Name::of("/bin/y").unwrap().to_string());
            cases.push((f.signed(&f.pair, build, &of_other), "of another program"));
        }
        for (bytes, reason) in cases {
            let Some(Taken::Refused(why)) = f.put(slot, &bytes) else { panic!("{reason}") };
            assert!(why.contains(reason), "{why}: {reason}");
            assert_eq!(f.exchange.usable(BUILD, slot), None);
        }
        // A link, even to a good file, and a pipe.
        let elsewhere = f.folder.path().join("elsewhere");
        fs::write(&elsewhere, &good).unwrap();
        fs::remove_file(f.inbox(slot)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, f.inbox(slot)).unwrap();
        assert!(matches!(f.run(slot), Some(Taken::Refused(_))));
        fs::remove_file(f.inbox(slot)).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, f.inbox(slot), rustix::fs::Mode::RUSR).unwrap();
        assert!(matches!(f.run(slot), Some(Taken::Refused(_))));
    }
}

#[test]
fn own_profiles_are_exported_and_harm_is_remembered() {
    let mut f = Fixture::new();
    let own = f.exchange.store.profile(BUILD);
    let out = f.folder.path().join(format!("spool/out/{BUILD}.profile"));
    for content in ["one", "other"] {
        write_whole(&own, content.as_bytes()).unwrap();
        f.run(Slot::Own);
        assert_eq!(fs::read_to_string(&out).unwrap(), content);
    }
    for slot in Slot::ALL {
        let bytes = f.signed(&f.pair, build_in(slot), &text(build_in(slot)));
        f.put(slot, &bytes);
        let digest = f.exchange.usable(BUILD, slot).unwrap().1;
        let vote = Vote { build: BUILD.to_owned(), digest, harm: true, factor: [0.9, 0.8, 0.95] };
        // Harm to another build says nothing of this one.
        f.exchange.votes.push(Vote { build: "0e".to_owned(), ..vote.clone() });
        assert!(f.exchange.usable(BUILD, slot).is_some());
        f.exchange.votes.push(vote);
        assert_eq!(f.exchange.usable(BUILD, slot), None);
        f.run(slot);
        f.restart();
        f.run(slot);
        assert_eq!(f.exchange.usable(BUILD, slot), None, "a later daemon has it from its report");
    }
    // A spool folder that is not there, or is full, is reported, and nothing else happens.
    fs::remove_dir_all(f.folder.path().join("spool")).unwrap();
    f.restart();
    assert!(f.exchange.run(&[(BUILD.to_owned(), EXE.to_owned())].into()).is_err());
}

/// The best of all existing profiles is chosen. The test removes them one by one.
#[test]
fn own_profiles_go_before_the_fleets_and_those_of_the_build_before_others() {
    let mut f = Fixture::new();
    let own = f.exchange.store.profile(BUILD);
    let other_build = f.exchange.store.profile(FORMER);
    for path in [&own, &other_build] {
        write_whole(path, b"x").unwrap();
    }
    for slot in Slot::ALL {
        let bytes = f.signed(&f.pair, build_in(slot), &text(build_in(slot)));
        f.put(slot, &bytes);
    }
    let kept = Slot::ALL.map(|slot| f.exchange.store.aggregate(BUILD, slot));
    let digests = Slot::ALL.map(|slot| Digest::of(text(build_in(slot)).as_bytes()));
    let order = [
        (Source::Own, &own, None),
        (Source::Fleet, &kept[0], Some(digests[0])),
        (Source::OwnOfOtherBuild, &other_build, None),
        (Source::FleetOfOtherBuild, &kept[1], Some(digests[1])),
    ];
    for (source, path, aggregate) in order {
        let warm = f.exchange.warm_profile(BUILD, Some(&other_build)).unwrap();
        assert_eq!((warm.origin.source, &warm.path, warm.origin.aggregate), (source, path, aggregate));
        match source {
            Source::Own | Source::OwnOfOtherBuild => fs::remove_file(path).unwrap(),
            Source::Fleet => fs::remove_file(f.inbox(Slot::Own)).unwrap(),
            Source::FleetOfOtherBuild => fs::remove_file(f.inbox(Slot::Former)).unwrap(),
        }
        f.run(Slot::Own);
    }
    assert_eq!(f.exchange.warm_profile(BUILD, None), None);
}
