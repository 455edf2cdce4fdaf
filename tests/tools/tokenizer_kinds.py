"""Small tokenizers of the kinds that models use, for tests that compare their text: byte-level and SentencePiece-like ones, with and
without templates. Each has the special tokens <unk>, <s>, </s> and <|endoftext|>, and at most VOCABULARY entries."""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 600
SPECIAL = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
UNKNOWN, BEGIN, END = range(3)
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on quiet hills caf\u00e9 \u4e16\u754c river stone don't .,!?".split()
TEXT = [" ".join(WORDS[(7 * i + i * i * j + j) % len(WORDS)] for j in range(30)) for i in range(60)]
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def with_template(tokenizer, template):
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=[
            (name, tokenizer.token_to_id(name)) for name in SPECIAL if name in template])
    return tokenizer


def byte_level(template=None, prefix_space=False, normalizer=None, split=None):
    """GPT-2; with a template Llama 3, with a normalizer and a split Qwen."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), last]) if split else last
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False,
                                                            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return with_template(tokenizer, template)


def sentencepiece(template=None, prefix=True, scheme=None):
    """Llama 2 and, without a prefix, Gemma. BPE over words that begin with a mark, with tokens of bytes for other characters. The
    mark comes from a normalizer, or with a scheme from the pre-tokenizer Metaspace."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [piece for piece in sorted(model["vocab"], key=model["vocab"].get) if piece not in pieces]
    tokenizer = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=[tuple(pair) for pair in model["merges"]],
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if scheme:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        mark = normalizers.Replace(" ", "\u2581")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), mark]) if prefix else mark
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] if prefix else steps)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return with_template(tokenizer, template)


def unigram(template=None):
    """T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(TEXT, trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False))
    return with_template(tokenizer, template)


def word_piece(template=None):
    """BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False))
    return with_template(tokenizer, template)


def words():
    """Whole words, without a decoder."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TEXT, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))
    return tokenizer


def kinds():
    """Returns the tokenizers by name."""
    return {"byte-level": byte_level(),
            "byte-level, begin": byte_level("<s> $A"),
            "byte-level, prefix space, begin and end": byte_level("<s> $A </s>", prefix_space=True),
            "byte-level, NFC and split": byte_level(normalizer=normalizers.NFC(), split=QWEN_SPLIT),
            "SentencePiece": sentencepiece(),
            "SentencePiece, begin": sentencepiece("<s> $A"),
            "SentencePiece, Metaspace, begin": sentencepiece("<s> $A", scheme="first"),
            "SentencePiece without prefix, two begin tokens": sentencepiece("<|endoftext|> <s> $A", prefix=False),
            "Unigram": unigram(),
            "Unigram, end": unigram("$A </s>"),
            "WordPiece, begin and end": word_piece("<s> $A </s>"),
            "words": words()}
