// Checkpoints: everything a program needs to write, find and read them. docs/checkpoint.md defines the format.
#pragma once
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/checkpoint/manifest.h"
#include "tessera/train/checkpoint/reader.h"
#include "tessera/train/checkpoint/together.h"
#include "tessera/train/checkpoint/writer.h"
