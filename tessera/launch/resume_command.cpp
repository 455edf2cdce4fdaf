#include "tessera/launch/resume_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tessera/settings/settings.h"

namespace tessera::launch {
namespace {

using nlohmann::json;

std::string words_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? " on" : " off";
  if (value.is_string()) return fmt::format(" {}", shell_word(value.get<std::string>()));
  if (!value.is_array()) return fmt::format(" {}", value.dump());
  std::string words;
  for (const json& word : value) words += words_of(word);
  return words;
}

std::string call_of(const rendezvous::Launch& launch) {
  if (!calls_launcher(launch)) return "";
  if (launch.launcher == "torchrun") return fmt::format("torchrun --no-python --nproc-per-node {} ", launch.size);
  return fmt::format("{} -n {} ", launch.launcher, launch.size);
}

}  // namespace

bool calls_launcher(const rendezvous::Launch& launch) {
  return !launch.launcher.empty() && !launch.is_self_started;
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

namespace {

bool is_in_command(const settings::TrainConfig& config, const settings::Setting& setting,
                   const ResumeChanges* changes) {
  static constexpr std::string_view elsewhere[] = {"resume", "out", "trace_step"};
  if (changes != nullptr && changes->kept.contains(std::string(setting.name))) return true;
  if (changes != nullptr &&
      (setting.on_resume == settings::OnResume::mesh || setting.on_resume == settings::OnResume::places))
    return setting.name != "ranks" &&
           settings::value_of(config, setting) != settings::value_of(settings::TrainConfig(), setting);
  return setting.on_resume == settings::OnResume::command_line && config.given.contains(std::string(setting.name)) &&
         std::ranges::find(elsewhere, setting.name) == std::end(elsewhere);
}

}  // namespace

std::string resume_command(const settings::ResolvedRun& run, std::string_view program, const rendezvous::Launch& launch,
                           const ResumeChanges* changes) {
  std::string command = changes == nullptr ? "" : changes->before;
  command += fmt::format("{}{} train --resume {} --out {}", call_of(launch), shell_word(std::string(program)),
                         shell_word(changes == nullptr ? "latest" : changes->from), shell_word(run->out));
  for (const settings::Setting& setting : settings::settings()) {
    if (!is_in_command(run.stored(), setting, changes)) continue;
    const json value = settings::value_of(run.stored(), setting);
    if (!value.is_null()) command += fmt::format(" {}{}", settings::flag_of(setting.name), words_of(value));
  }
  return command;
}

}  // namespace tessera::launch
