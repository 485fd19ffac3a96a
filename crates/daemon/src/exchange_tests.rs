use super::*;
use minisign::KeyPair;

const BUILD: &str = "0a0b";

struct Fixture {
    folder: tempfile::TempDir,
    pair: KeyPair,
    exchange: Exchange,
}

fn text(build: &str) -> String {
    format!(
        "whet-profile 2\nruns 1\nmodule {build}\nfunction 0x10 7 counted entered 1 samples 1 size 0x4 none\n+0 +0 1\nend\n"
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

    fn inbox(&self) -> PathBuf {
        self.folder.path().join(format!("spool/in/{BUILD}.signed"))
    }

    /// Puts bytes into the inbox, in the way of `whet-fleet`.
    fn put(&mut self, bytes: &[u8]) -> Option<Taken> {
        write_whole(&self.inbox(), bytes).unwrap();
        self.run()
    }

    fn run(&mut self) -> Option<Taken> {
        self.exchange.run(&[(BUILD.to_owned(), "/bin/x".to_owned())].into()).unwrap();
        let report = fs::read(self.folder.path().join("spool/out/host.json")).unwrap();
        HostReport::parse(&report).unwrap().builds[0].inbox.clone()
    }
}

#[test]
fn a_signed_profile_of_the_build_is_taken_and_withdrawn() {
    let mut f = Fixture::new();
    assert_eq!((f.run(), f.exchange.usable(BUILD)), (None, None));
    let bytes = f.signed(&f.pair, BUILD, &text(BUILD));
    let digest = Digest::of(text(BUILD).as_bytes());
    assert_eq!(f.put(&bytes), Some(Taken::Taken(digest)));
    let (path, used) = f.exchange.usable(BUILD).unwrap();
    assert_eq!((fs::read_to_string(&path).unwrap(), used), (text(BUILD), digest));
    // A refused file does not withdraw the file before. After a restart there is none.
    assert_eq!(f.put(b"nonsense"), Some(Taken::Taken(digest)));
    f.restart();
    assert!(matches!(f.run(), Some(Taken::Refused(_))));
    assert_eq!(f.put(&bytes), Some(Taken::Taken(digest)));
    fs::remove_file(f.inbox()).unwrap();
    assert_eq!((f.run(), path.exists()), (None, false));
}

#[test]
fn foreign_and_damaged_files_are_refused_with_the_reason() {
    let mut f = Fixture::new();
    let other = KeyPair::generate_unencrypted_keypair().unwrap();
    let good = f.signed(&f.pair, BUILD, &text(BUILD));
    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    let huge = vec![b'x'; usize::try_from(LIMIT).unwrap() + 1];
    let cases = [
        (text(BUILD).into_bytes(), "signature"),
        (f.signed(&other, BUILD, &text(BUILD)), "none of the configured keys"),
        (f.signed(&f.pair, "0c", &text(BUILD)), "it was signed as"),
        (f.signed(&f.pair, BUILD, &text("0c")), "no function of build"),
        (f.signed(&f.pair, BUILD, "whet-profile 9\nend\n"), "version 9"),
        (changed, "changed, or cut off"),
        (good[..good.len() - 5].to_vec(), "changed, or cut off"),
        (huge, "no plain file"),
        (Vec::new(), "signature"),
    ];
    for (bytes, reason) in cases {
        let Some(Taken::Refused(why)) = f.put(&bytes) else { panic!("{reason}") };
        assert!(why.contains(reason), "{why}: {reason}");
        assert_eq!(f.exchange.usable(BUILD), None);
    }
    // A link, even to a good file, and a pipe.
    let elsewhere = f.folder.path().join("elsewhere");
    fs::write(&elsewhere, &good).unwrap();
    fs::remove_file(f.inbox()).unwrap();
    std::os::unix::fs::symlink(&elsewhere, f.inbox()).unwrap();
    assert!(matches!(f.run(), Some(Taken::Refused(_))));
    fs::remove_file(f.inbox()).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, f.inbox(), rustix::fs::Mode::RUSR).unwrap();
    assert!(matches!(f.run(), Some(Taken::Refused(_))));
}

#[test]
fn own_profiles_are_exported_and_harm_is_remembered() {
    let mut f = Fixture::new();
    let own = f.exchange.store.profile(BUILD);
    let out = f.folder.path().join(format!("spool/out/{BUILD}.profile"));
    for content in ["one", "other"] {
        write_whole(&own, content.as_bytes()).unwrap();
        f.run();
        assert_eq!(fs::read_to_string(&out).unwrap(), content);
    }
    let bytes = f.signed(&f.pair, BUILD, &text(BUILD));
    f.put(&bytes);
    let digest = f.exchange.usable(BUILD).unwrap().1;
    f.exchange.votes.push(Vote { build: BUILD.to_owned(), digest, harm: true, factor: [0.9, 0.8, 0.95] });
    assert_eq!(f.exchange.usable(BUILD), None);
    f.run();
    f.restart();
    f.run();
    assert_eq!(f.exchange.usable(BUILD), None, "a later daemon has it from its report");
    // A spool folder that is not there, or is full, is reported, and nothing else happens.
    fs::remove_dir_all(f.folder.path().join("spool")).unwrap();
    f.restart();
    assert!(f.exchange.run(&[(BUILD.to_owned(), "/bin/x".to_owned())].into()).is_err());
}
