use super::*;
use crate::{Build, Class};
use minisign::KeyPair;

fn program(build: &str) -> Program {
    Program { build: Build::parse(build).unwrap(), class: Class::default() }
}

fn sign(pair: &KeyPair, content: &[u8], comment: &str) -> Vec<u8> {
    let signature = minisign::sign(None, &pair.sk, content, Some(comment), Some("by a test")).unwrap();
    seal(&signature.into_string(), content)
}

fn keys(pairs: &[&KeyPair]) -> Keys {
    Keys::parse(&pairs.iter().map(|p| p.pk.to_base64()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn only_what_a_trusted_key_signed_for_this_use_is_opened() {
    let [ours, theirs] = [0; 2].map(|_| KeyPair::generate_unencrypted_keypair().unwrap());
    let purpose = Purpose::Aggregate(program("0a0b"));
    let document = sign(&ours, b"content", &purpose.to_string());
    let both = keys(&[&theirs, &ours]);
    assert_eq!(both.open(&document, &purpose), Ok(&b"content"[..]));
    // Another key, no key at all.
    let Err(Refused::UnknownKey(id)) = keys(&[&theirs]).open(&document, &purpose) else { panic!() };
    assert!(ours.pk.to_box().unwrap().into_string().contains(&id), "{id} is the id that minisign prints");
    assert!(matches!(Keys::default().open(&document, &purpose), Err(Refused::UnknownKey(_))));
    // Another program, another kind of document.
    for other in [Purpose::Aggregate(program("0a0c")), Purpose::Head(program("0a0b")), Purpose::Policy] {
        assert!(matches!(both.open(&document, &other), Err(Refused::OtherPurpose { .. })), "{other}");
    }
    assert!(matches!(Keys::parse(&["nonsense"]), Err(Refused::NoKey(_))));
}

#[test]
fn an_aggregate_of_another_build_is_of_the_same_class() {
    let pair = KeyPair::generate_unencrypted_keypair().unwrap();
    let keys = keys(&[&pair]);
    let open = |purpose: &Purpose| {
        let document = sign(&pair, b"content", &purpose.to_string());
        keys.open_former(&document, &program("0b")).map(|(build, content)| (build, content.to_vec()))
    };
    let former = Purpose::Aggregate(program("0a"));
    assert_eq!(open(&former), Ok((program("0a").build, b"content".to_vec())));
    let replica = Program { class: "replica".parse().unwrap(), ..program("0a") };
    for other in
        [Purpose::Aggregate(replica), Purpose::Aggregate(program("0b")), Purpose::Head(program("0a"))]
    {
        assert!(matches!(open(&other), Err(Refused::OtherPurpose { .. })), "{other}");
    }
    let stranger = KeyPair::generate_unencrypted_keypair().unwrap();
    let document = sign(&stranger, b"content", &former.to_string());
    assert!(matches!(keys.open_former(&document, &program("0b")), Err(Refused::UnknownKey(_))));
}

#[test]
fn a_changed_or_cut_document_is_refused() {
    let pair = KeyPair::generate_unencrypted_keypair().unwrap();
    let document = sign(&pair, b"some content\n", &Purpose::Policy.to_string());
    let keys = keys(&[&pair]);
    for cut in 0..document.len() {
        assert!(keys.open(&document[..cut], &Purpose::Policy).is_err(), "{cut}");
    }
    let comment = b"untrusted comment: by a test\n".len();
    for at in comment..document.len() {
        let mut changed = document.clone();
        changed[at] ^= 1;
        assert!(keys.open(&changed, &Purpose::Policy).is_err(), "{at}");
    }
}

#[test]
fn any_bytes_are_opened_or_refused() {
    let pair = KeyPair::generate_unencrypted_keypair().unwrap();
    let document = sign(&pair, b"some content\n", &Purpose::Policy.to_string());
    let keys = keys(&[&pair]);
    arbtest::arbtest(|u| {
        let mut bytes = if u.ratio(1, 4)? { u.arbitrary()? } else { document.clone() };
        for _ in 0..u.int_in_range(1..=4)? {
            let at = u.choose_index(bytes.len() + 1)?;
            let to = (at + u.int_in_range(0..=90)?).min(bytes.len());
            let some: Vec<u8> = u.arbitrary()?;
            bytes.splice(at..to, some);
        }
        let _ = keys.open(&bytes, &Purpose::Policy);
        let _ = keys.open_former(&bytes, &program("0a"));
        Ok(())
    })
    .budget_ms(1000);
}
